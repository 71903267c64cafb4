"""The benchmark of inheritance on a study of seconds, through its command."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.inheritance import BASELINE, Row, cell
from tests.nas.tiny_study import TinyStudy


def test_every_setting_is_measured(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw.json"
    options = ["--budgets", "4", "--steps", "0", "3", "--seeds", "0", "--device", "cpu"]
    assert main(["inheritance", "--preset", str(tiny_study.preset), *options, "--json", str(raw)]) == 0
    measured = json.loads(raw.read_text())["results"]["measured"]
    # 2 orders x 2 inheritances x 2 allocations, untrained and trained.
    assert len(measured) == 8 * 2
    assert {sum(row["widths"]) for row in measured.values()} == {2 * 16}
    assert len({row["score"] for name, row in measured.items() if "0 steps" in name}) > 1
    out = capsys.readouterr().out
    assert out.count("compensated |") == 4 and "seconds of inheriting" in out


def test_differences_are_paired() -> None:
    scores = {BASELINE: (0.5, 0.7), ("reconstruction", "compensated"): (0.6, 0.82)}

    def rows_of(budget: int, allocation: str, setting: tuple[str, str], steps: int) -> list[Row]:
        assert (budget, allocation, steps) == (8, "uniform", 60)
        return [{"score": score} for score in scores[setting]]

    assert cell(rows_of, 8, "uniform", BASELINE, 60) == "0.6000"
    assert cell(rows_of, 8, "uniform", ("reconstruction", "compensated"), 60) == "0.7100 (+0.1100 ± 0.0100)"
