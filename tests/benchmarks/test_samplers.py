"""Counts of evaluations and improvements against their definitions, and a small run."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import samplers
from benchmarks.__main__ import main
from benchmarks.samplers import MAX_EVALUATIONS, evaluations_until_good, improvements
from benchmarks.tabulated import FFNS, load


def test_evaluations_are_counted_up_to_the_first_good_one() -> None:
    table = load(FFNS)
    assert evaluations_until_good(table, [0.0, table.good, 1.0]) == 2
    assert evaluations_until_good(table, [0.0] * MAX_EVALUATIONS) == MAX_EVALUATIONS


@given(st.lists(st.integers(0, 9).map(lambda number: number / 10), min_size=1, max_size=30))
def test_improvements_give_the_best_score_so_far(scores: list[float]) -> None:
    steps = improvements(scores)
    assert [number for number, _ in steps] == sorted({number for number, _ in steps})
    best = [max(score for number, score in steps if number <= count) for count in range(1, len(scores) + 1)]
    assert best == pytest.approx(np.maximum.accumulate(scores))


def test_raw_numbers_are_of_every_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(samplers, "MIN_EVALUATIONS", 8)
    monkeypatch.setattr(samplers, "MAX_EVALUATIONS", 8)
    path = tmp_path / "samplers.json"
    assert main(["samplers", "--space", "ffns", "--seeds", "2", "--first-seed", "5", "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    assert content["seeds"] == [5, 6]
    assert set(content["results"]) == {"lanas", "lanas-published", "evolution", "local", "random", "tpe"}
    assert all(len(of["evaluations until good"]) == 2 for of in content["results"].values())
    assert "| random" in capsys.readouterr().out
    assert main(["samplers", "--seeds", "2", "--samplers", "random", "milp", "--json", str(path)]) == 0
    assert set(json.loads(path.read_text())["results"]) == {"random", "milp"}
    assert "score and accuracy after training: tau" in capsys.readouterr().out
    assert main(["samplers", "--space", "ffns", "--samplers", "milp", "--json", str(path)]) == 2
    assert "--samplers: milp needs predicted losses, which the table of ffns does not have" in capsys.readouterr().err
