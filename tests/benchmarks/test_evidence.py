"""The benchmark as it is run, its statistics against scipy and definitions, and its table from known scores."""

import json
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.__main__ import main
from benchmarks.common import BenchmarkError, Report, read_results
from benchmarks.evidence import KEPT, RUNG, SEARCH, TARGET, Signal, draw, on_task, others, show
from search_spaces import Space
from search_spaces.equivalence import function_key
from tests.benchmarks.tables import cells_of
from tests.nas.tiny_study import TinyStudy
from tests.tiny import BASE

SPACE = Space(BASE, {"stack": (1, 2), "expansion": tuple(Fraction(1, n) for n in (1, 2, 4))}, 1, 10**9)

# Prints the table of some results, and returns what it printed.
Show = Callable[[dict[str, Any], Sequence[int]], str]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    def text_of(results: dict[str, Any], seeds: Sequence[int]) -> str:
        show(Report("evidence", (), {}, tmp_path / "evidence.json"), results, seeds)
        return capsys.readouterr().out

    return text_of


def signal(values: Sequence[float], targets: Sequence[float]) -> Signal:
    return Signal("s", np.array([values], dtype=float), np.array([targets], dtype=float), 0.0)


def test_tau_is_the_mean_over_seeds() -> None:
    both = Signal("s", np.array([[1, 2, 3], [3, 2, 1]]) * 1.0, np.array([[1, 2, 3], [1, 3, 2]]) * 1.0, 0.0)
    assert both.tau() == pytest.approx((1 - 1 / 3) / 2)


def test_the_interval_is_that_of_resampled_architectures() -> None:
    rng = np.random.default_rng(1)
    targets = rng.normal(size=20)
    values = targets + rng.normal(size=20)
    drawn = np.random.default_rng(2).integers(20, size=(2_000, 20))
    expected = np.percentile([kendalltau(values[rows], targets[rows]).statistic for rows in drawn], [2.5, 97.5])
    assert signal(values, targets).interval() == pytest.approx(expected, abs=0.03)
    assert signal(targets, targets).interval() == (1, 1)


def test_the_top_quarter() -> None:
    targets = [8.0, 7, 6, 5, 4, 3, 2, 1]
    assert signal(targets, targets).top_quarter() == 1
    assert signal([8, 1, 7, 2, 3, 4, 5, 6], targets).top_quarter() == 0.5
    assert signal(targets[::-1], targets).top_quarter() == 0


def test_other_seeds() -> None:
    assert others(np.array([[1.0, 2], [3, 4], [5, 9]])).tolist() == [[4, 6.5], [3, 5.5], [2, 3]]


def test_architectures_are_different_functions_and_the_same_ones_again() -> None:
    architectures = draw(SPACE, 12)
    assert len({function_key(architecture) for architecture in architectures}) == 12
    assert draw(SPACE, 5) == architectures[:5]


def test_it_goes_on_where_it_was_cut_short(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "evidence.json"

    def run(*arguments: object, status: int = 0) -> tuple[str, str]:
        assert main(["evidence", *map(str, arguments)]) == status
        return capsys.readouterr()

    def write(path: Path, results: dict[str, Any]) -> None:
        path.write_text(json.dumps(json.loads(file.read_text()) | {"results": results}))

    command = ("--preset", tiny_study.preset, "--architectures", 4, "--full-steps", 7, "--seeds", 1, 2, "--json", file)
    command += ("--further-tasks", "neighbours")
    first, _ = run(*command)
    whole = read_results(file, "evidence")["results"]
    assert set(whole["measured"]) == {
        f"{place}{seed}"
        for place in range(4)
        for seed in ("", "/1", "/1/search", "/1/neighbours", "/2", "/2/search", "/2/neighbours")
    }
    assert "neighbours" in cells_of(first)
    table = ("--seeds", 1, 2, "--table")
    assert first == run(*table, file)[0]

    kept = {name: row for name, row in whole["measured"].items() if name not in ("3", "2/1")}
    write(file, whole | {"measured": kept})
    lines = [line.split(":")[0] for line in run(*command)[1].splitlines()]
    assert lines == ["3", "2/1", "raw numbers"]
    assert values_of(read_results(file, "evidence")["results"]) == values_of(whole)

    parts = {tmp_path / "odd.json": ("1", "3"), tmp_path / "even.json": ("0", "2")}
    for path, places in parts.items():
        part = {name: row for name, row in whole["measured"].items() if name.startswith(places)}
        write(path, whole | {"measured": part})
    assert first == run(*table, *parts)[0]
    write(tmp_path / "odd.json", whole | {"settings": whole["settings"] | {"full_steps": 8}})
    _, error = run(*table, *reversed(parts), status=2)
    assert re.search(r"odd.json is of another run than .*even.json \(full_steps\)", error)

    _, error = run(*command, "--full-steps", 6, status=2)
    assert "--full-steps: must be above 6, the steps of the search, not 6" in error


def values_of(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Without the seconds."""
    return {key: {name: value for name, (value, _) in row.items()} for key, row in results["measured"].items()}


def raw(number: int = 12, seeds: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """Scores that agree between seeds, a signal that has their order, and a loss that has the opposite one."""
    rng = random.Random(0)
    architectures = draw(SPACE, number)
    truth = [rng.random() for _ in architectures]
    measured: dict[str, dict[str, tuple[float, float]]] = {}
    for place, value in enumerate(truth):
        measured[f"{place}"] = {KEPT: (rng.random(), 0.0), "loss untrained": (-value, 2.0)}
        for seed in seeds:
            measured[f"{place}/{seed}"] = {"score after 10 steps": (rng.random(), 4.0), TARGET: (value, 5.0)}
            measured[f"{place}/{seed}/search"] = {RUNG: (-value, 2.0), SEARCH: (rng.random(), 3.0)}
    settings = {
        "name": "demo",
        "full_steps": 400,
        "search_steps": 60,
        "threads": 2,
        "architectures": [one.to_json() for one in architectures],
    }
    return {"settings": settings, "measured": measured}


def test_the_table_of_all_signals(shown: Show) -> None:
    text = shown(raw(), (1, 2))
    lines = cells_of(text)
    assert lines["loss untrained"] == ["+1.00", "+1.00 to +1.00", "100%", "2"]
    assert lines[f"{TARGET} (400 steps)"] == ["+1.00", "+1.00 to +1.00", "100%", "5"]
    assert lines[RUNG] == ["-1.00", "-1.00 to -1.00", "0%", "2"]
    assert list(lines)[-1] == RUNG, "the best is first"
    assert "12 architectures, 400 steps (5 s), seeds 1, 2" in text
    assert "from seed to seed 0.0000" in text


def test_the_score_of_the_search_against_other_tasks(shown: Show) -> None:
    """As in EfficientBERT's figure 3: one tau for each task."""
    results = raw()
    results["settings"]["tasks"] = ["same", "reversed"]
    for name, row in list(results["measured"].items()):
        if name.count("/") == 1:
            value, seconds = row[TARGET]
            results["measured"][f"{name}/same"] = {on_task("same"): (value, seconds)}
            results["measured"][f"{name}/reversed"] = {on_task("reversed"): (1 - value, seconds)}
    lines = cells_of(shown(results, (1, 2)))
    searched = cells_of(shown(raw(), (1, 2)))[f"{SEARCH} (60 steps)"]
    assert lines["same"][:2] == searched[:2] and on_task("same") not in lines
    assert float(lines["reversed"][0]) == -float(lines["same"][0]) != 0


def test_a_signal_is_not_compared_with_the_end_of_its_own_training(shown: Show) -> None:
    """Where every seed orders the architectures in its own way, an intermediate value that has the order of its own
    seed's end says as little as that end itself.
    """
    results = raw(number=32, seeds=(1, 2, 3))
    rng = np.random.default_rng(0)
    for name, row in results["measured"].items():
        if name.count("/") == 1:
            value = float(rng.random())
            row |= {TARGET: (value, 5.0), "score after 10 steps": (value / 2, 4.0)}
    lines = cells_of(shown(results, (1, 2, 3)))
    assert lines["score after 10 steps"][:3] == lines[f"{TARGET} (400 steps)"][:3]
    assert abs(float(lines["score after 10 steps"][0])) < 0.3


def test_architectures_that_lack_a_training_are_left_out(shown: Show) -> None:
    partial = raw(number=13)
    partial["measured"]["12/2"] = {"diverged": "the loss is nan at step 3"}
    complete = raw(number=13)
    for name in ("12", "12/1", "12/2"):
        del complete["measured"][name]
    text = shown(partial, (1, 2))
    assert "12 architectures" in text and "diverged: 1" in text
    assert cells_of(text) == cells_of(shown(complete, (1, 2)))
    with pytest.raises(BenchmarkError, match="3 architectures measured with all of 2 seeds"):
        shown(raw(number=3), (1, 2))
