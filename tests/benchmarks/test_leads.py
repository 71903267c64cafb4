"""Searches and baselines within one budget, trained alike."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from nas.planning.finalists import ALLOCATED, GLOBAL, UNIFORM
from search_spaces import Architecture, cost
from tests.nas.evaluation.test_evaluate_untrained import UNTRAINED
from tests.nas.tiny_study import TinyStudy


def test_winners_and_baselines_share_a_budget(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tiny_study.variant(tmp_path / "untrained.toml", *UNTRAINED)
    file = tmp_path / "leads.json"
    command = ["leads", "--preset", str(preset), "--kinds", "params", "--budgets", "2", "--searches", "2"]
    command += ["--steps", "2", "--seeds", "2", "--json", str(file)]
    assert main(command) == 0
    first = capsys.readouterr().out
    measured = json.loads(file.read_text())["results"]["measured"]
    costs = measured["params 1/2, costs of 2 winners"]
    assert "lead of the winners over" in first
    for name in (UNIFORM, GLOBAL, ALLOCATED[0], "winner 0", "winner 1"):
        assert f"| {name} " in first
        assert costs[name]["params"] <= costs[UNIFORM]["params"]
    for search in range(2):
        winner = Architecture.from_json(measured[f"params 1/2, search {search}"]["winner"])
        assert cost.params(winner, 3) == costs[f"winner {search}"]["params"]
