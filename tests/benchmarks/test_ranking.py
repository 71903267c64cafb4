"""Rank correlations against scipy, and predictors that know nothing of what they predict."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from benchmarks.signals import ranking
from benchmarks.signals.ranking import (
    KNOWN,
    PREDICTORS,
    Signal,
    held_out,
    interval,
    others,
    predicted,
    rows_of,
    tau,
    taus_of_resamples,
    top_quarter,
)


def signal(values: list[float], targets: list[float], name: str = "s") -> Signal:
    return Signal(name, np.array([values], dtype=float), np.array([targets], dtype=float), 0.0)


@given(st.data())
def test_tau_of_resamples_is_scipy_s(data: st.DataObject) -> None:
    """With ties, with architectures without a value, and with several copies of one or none."""
    number = data.draw(st.integers(2, 9))
    small = st.integers(0, 4).map(float)
    values = data.draw(st.lists(small | st.just(math.nan), min_size=number, max_size=number))
    targets = data.draw(st.lists(small, min_size=number, max_size=number))
    counts = data.draw(st.lists(st.integers(0, 3), min_size=number, max_size=number))
    for weights in ([1] * number, counts):
        (value,) = taus_of_resamples(signal(values, targets), np.array([weights], dtype=float))
        pairs = np.repeat(np.array([values, targets]), weights, axis=1)
        pairs = pairs[:, ~np.isnan(pairs[0])]
        expected = kendalltau(*pairs).statistic if pairs.shape[1] > 1 else math.nan
        assert value == pytest.approx(expected, nan_ok=True)


def test_tau_is_the_mean_over_measurements() -> None:
    both = Signal("s", np.array([[1, 2, 3], [3, 2, 1]]) * 1.0, np.array([[1, 2, 3], [1, 3, 2]]) * 1.0, 0.0)
    assert tau(both) == pytest.approx((1 - 1 / 3) / 2)
    assert taus_of_resamples(both, np.ones((1, 3))) == pytest.approx([tau(both)])


def test_the_interval_is_that_of_resampled_architectures() -> None:
    rng = np.random.default_rng(1)
    targets = rng.normal(size=20)
    values = targets + rng.normal(size=20)
    drawn = np.random.default_rng(2).integers(20, size=(2_000, 20))
    expected = np.percentile([kendalltau(values[rows], targets[rows]).statistic for rows in drawn], [2.5, 97.5])
    assert interval(signal(list(values), list(targets))) == pytest.approx(expected, abs=0.03)
    assert interval(signal(list(targets), list(targets))) == (1, 1)
    assert all(map(math.isnan, interval(signal([1.0] * 20, list(targets)))))


def test_the_top_quarter() -> None:
    targets = [8.0, 7, 6, 5, 4, 3, 2, 1]
    assert top_quarter(signal(targets, targets)) == 1
    assert top_quarter(signal([8, 1, 7, 2, 3, 4, 5, 6], targets)) == 0.5
    assert top_quarter(signal(targets[::-1], targets)) == 0
    # Of what has a value, the best two are the third and the fourth.
    assert top_quarter(signal([math.nan, math.nan, 6, 5, 4, 3, 2, 1], targets)) == 1


def test_other_seeds() -> None:
    assert others(np.array([[1.0, 2], [3, 4], [5, 9]])).tolist() == [[4, 6.5], [3, 5.5], [2, 3]]


# Random choices of the known architectures; trees take long.
FEW = 4


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_prediction_knows_nothing_of_its_own_row(name: str) -> None:
    rng = np.random.default_rng(0)
    genes, early, targets = rng.normal(size=(12, 3)), rng.normal(size=(12, 1)), rng.normal(size=12)
    found = held_out(PREDICTORS[name], genes, early, targets, 8, FEW)
    assert (np.isnan(found).sum(axis=1) == 8).all()
    assert len({tuple(row) for row in np.isnan(found)}) == FEW
    for row in np.flatnonzero(~np.isnan(found).all(axis=0))[:4]:
        changed, hidden = targets.copy(), ~np.isnan(found[:, row])
        changed[row] += 100
        again = held_out(PREDICTORS[name], genes, early, changed, 8, FEW)
        assert np.array_equal(again[hidden], found[hidden], equal_nan=True)
        # Nor do others learn from its early score: their scale is of the known ones alone.
        moved = early.copy()
        moved[row] += 100
        again = held_out(PREDICTORS[name], genes, moved, targets, 8, FEW)
        rest = np.arange(12) != row
        assert np.array_equal(again[hidden][:, rest], found[hidden][:, rest], equal_nan=True)


def tau_of(name: str, genes: np.ndarray, early: np.ndarray, targets: np.ndarray) -> float:
    found = held_out(PREDICTORS[name], genes, early, targets, 16, FEW)
    rows = Signal(name, found, np.repeat(targets[None], FEW, axis=0), 0.0)
    return tau(rows)


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_predictor_finds_what_is_there_and_nothing_in_noise(name: str) -> None:
    rng = np.random.default_rng(0)
    nothing, noise = np.empty((32, 0)), []
    for number in range(12):
        genes, hidden = rng.normal(size=(32, 4)), rng.normal(size=32)
        # Predictions of left-out rows by the mean of the others would come out far below 0.
        noise.append(tau_of(name, genes, nothing, hidden))
        if number < 2:
            truth = genes @ [1.0, -1.0, 0.5, 0.0]
            alone = tau_of(name, genes, nothing, truth + 2 * hidden)
            assert tau_of(name, genes, nothing, truth) > 0.3
            # An early score adds to genes, whatever its scale.
            assert tau_of(name, genes, 1e-3 * hidden[:, None] + 0.7, truth + 2 * hidden) > alone + 0.1
    assert abs(np.mean(noise)) < 0.15


def test_predictors_learn_from_one_seed_and_are_compared_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "SPLITS", FEW)
    rng = np.random.default_rng(0)
    genes, targets, early = rng.normal(size=(32, 4)), rng.normal(size=(2, 32)), rng.normal(size=(2, 32, 1))
    scores = rng.normal(size=(2, 32))
    found = list(predicted(genes, scores, targets, ", early", early, 3.0))
    sizes = [f"{known} known, early" for known in KNOWN]
    assert [one.name for one in found] == [f"{name}, {size}" for name in PREDICTORS for size in sizes]
    for seed, rows in enumerate((slice(0, FEW), slice(FEW, 2 * FEW))):
        expected = held_out(PREDICTORS["ridge"], genes, early[seed], scores[seed], KNOWN[0], FEW)
        assert np.array_equal(found[0].values_KN[rows], expected, equal_nan=True)
        assert (found[0].targets_KN[rows] == targets[1 - seed]).all()
    assert all(3 < one.seconds < 4 for one in found)
    assert [one.name for one in predicted(genes[:11], scores[:, :11], targets[:, :11], "", early[:, :11], 0.0)] == [
        f"{name}, {known} known" for name in PREDICTORS for known in (4, 8)
    ]


def test_the_table_has_the_best_first() -> None:
    targets = [1.0, 2, 3, 4]
    signals = [
        signal([1, 1, 1, 1], targets, "flat"),
        signal([2, 1, 3, 4], targets, "good"),
        signal(targets[::-1], targets, "worst"),
        signal(targets, targets, "perfect"),
    ]
    rows = rows_of(signals)
    assert [row[0] for row in rows] == ["perfect", "good", "worst", "flat"]
    assert rows[0] == ("perfect", "+1.00", "+1.00 to +1.00", "100%", "0")
