"""The laws against numpy's own polynomial fits, and a measurement of two small settings from end to end."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import scaling
from benchmarks.__main__ import main
from benchmarks.laws import fit, laws, simplest, terms_of
from benchmarks.scaling import flops, noise_of, without_levels

VALUES = np.array([1, 2, 4, 6, 8, 12])
POSITIVE = st.floats(0.01, 10)


def measured(seed: int = 0) -> np.ndarray:
    """Seconds of a line with a slight bend, and noise."""
    rng = np.random.default_rng(seed)
    return (0.3 + 0.2 * VALUES + 0.001 * VALUES**2) * rng.uniform(0.95, 1.05, len(VALUES))


@given(st.lists(POSITIVE, min_size=3, max_size=3))
def test_fit_recovers_coefficients(coefficients: list[float]) -> None:
    constant, linear, square = coefficients
    law = fit(terms_of("layers"), VALUES, constant + linear * VALUES + square * VALUES**2)
    assert law.coefficients == pytest.approx(coefficients, rel=1e-6)
    assert law.worst < 1e-9
    assert law.left_out < 1e-8


@pytest.mark.parametrize("names", [("1", "x"), ("1", "x", "x²")])
def test_fit_is_that_of_polyfit_weighted_by_the_inverse(names: tuple[str, ...]) -> None:
    seconds = measured()
    law = fit(dict(zip(names, terms_of("x").values(), strict=False)), VALUES, seconds)
    degree = len(names) - 1
    expected, covariance = np.polyfit(VALUES, seconds, degree, w=1 / seconds, cov=True)
    assert law.coefficients == pytest.approx(expected[::-1])
    assert law.errors == pytest.approx(np.sqrt(np.diag(covariance))[::-1])
    found = np.polyval(expected, VALUES)
    assert law(VALUES) == pytest.approx(found)
    assert law.worst == pytest.approx(np.abs(found / seconds - 1).max())
    errors = []
    for place, value in enumerate(VALUES):
        others = np.arange(len(VALUES)) != place
        again = np.polyfit(VALUES[others], seconds[others], degree, w=1 / seconds[others])
        errors.append(np.polyval(again, value) / seconds[place] - 1)
    assert law.left_out == pytest.approx(np.sqrt(np.mean(np.square(errors))))


@given(st.sets(st.sampled_from(["1", "width", "width²"]), min_size=1), st.data())
def test_the_simplest_law_has_the_terms_of_the_data_and_no_others(names: set[str], data: st.DataObject) -> None:
    """Each of them is at least a hundredth of the whole somewhere."""
    terms = terms_of("width")
    seconds = sum(data.draw(POSITIVE) * term(VALUES.astype(float)) for name, term in terms.items() if name in names)
    assert set(simplest(laws(terms, VALUES, np.asarray(seconds)), 1e-7).terms) == names


def test_more_noise_makes_shorter_laws() -> None:
    found = laws(terms_of("layers"), VALUES, measured())
    assert [len(law.terms) for law in found] == sorted(len(law.terms) for law in found)
    assert simplest(found, 0.0).left_out == min(law.left_out for law in found)
    assert len(simplest(found, 10.0).terms) == 1


def test_no_law_has_a_negative_coefficient() -> None:
    seconds = 5 + 0.5 * VALUES - 0.02 * VALUES**2
    assert fit(terms_of("x"), VALUES, seconds).coefficients[2] < 0
    assert all(min(law.coefficients) >= 0 for law in laws(terms_of("x"), VALUES, seconds))


def test_of_two_values_only_one_term_can_be_told() -> None:
    found = laws(terms_of("x"), np.array([1, 2]), np.array([1.0, 2.0]))
    assert {len(law.terms) for law in found} == {1}


def test_levels_take_out_what_slows_down_whole_rounds() -> None:
    seconds = measured()
    rounds_RV = seconds * np.array([1.0, 1.3, 0.9])[:, None]
    assert noise_of(rounds_RV) > 0.1
    assert without_levels(rounds_RV) == pytest.approx(np.tile(without_levels(rounds_RV)[0], (3, 1)))
    assert noise_of(without_levels(rounds_RV)) < 1e-12


def test_operations_of_a_step() -> None:
    """Four maps of attention and two of the FFN in each of six layers."""
    assert flops("tokens", 128) == 2 * 3 * scaling.BATCH * 128 * 6 * 6 * 540**2
    assert flops("layers", 12) == 2 * flops("layers", 6)
    assert flops("width", 1080) == 4 * flops("width", 540)


def test_the_smallest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scaling, "STEPPED", {"layers": (1, 2)})
    monkeypatch.setattr(scaling, "BATCH", 2)
    monkeypatch.setattr(scaling, "STEPS", 3)
    monkeypatch.setattr(scaling, "TOKENS", 8)
    file = tmp_path / "scaling.json"
    assert main(["scaling", "--only", "layers", "--rounds", "2", "--json", str(file)]) == 0
    assert "law: (" in capsys.readouterr().out
    seconds = json.loads(file.read_text())["results"]["seconds"]
    assert {value: len(rounds) for value, rounds in seconds["layers"].items()} == {"1": 2, "2": 2}
