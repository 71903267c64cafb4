"""Sleeping trials, through a search's sampler, ledger and workers."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from tests.benchmarks.tables import cells_of


@pytest.mark.slow
def test_the_smallest_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "raw.json"
    command = ["orchestration", "--trials", "8", "--seconds", "0.2", "--ledger", "5", "--json", str(path)]
    assert main(command) == 0
    results = json.loads(path.read_text())["results"]
    assert len(results["trials"]) == 8
    # All but the first trial of each worker, none of which is negative but for rounding.
    assert len(results["orchestration"]) == 8 - results["workers"] and min(results["orchestration"]) > -0.01
    lines = cells_of(capsys.readouterr().out)
    assert {"5", "after 6", "after 13"} < set(lines), "five trials were there before"
