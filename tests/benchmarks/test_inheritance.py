"""The benchmark of inheritance on a study of seconds, through its command."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.signals.inheritance import cell
from tests.nas.tiny_study import TinyStudy


def test_every_setting_is_measured(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw.json"
    options = ["--budgets", "4", "--steps", "0", "3", "--seeds", "0", "1", "--device", "cpu"]
    assert main(["inheritance", "--preset", str(tiny_study.preset), *options, "--json", str(raw)]) == 0
    rows = json.loads(raw.read_text())["results"]
    # 2 orders x 2 inheritances x 2 allocations, untrained once and trained with two seeds.
    assert len(rows) == 8 * 3
    assert {sum(row["widths"]) for row in rows} == {2 * 16}
    untrained = {
        (row["order"], row["inheritance"], row["allocation"]): row["score"] for row in rows if not row["steps"]
    }
    assert len(set(untrained.values())) > 1
    out = capsys.readouterr().out
    assert out.count("compensated |") == 4 and "seconds of inheriting" in out

    # Nothing is measured again, and another supernet is added.
    command = ["inheritance", "--preset", str(tiny_study.preset), *options, "--json", str(raw)]
    assert main(command) == 0 and json.loads(raw.read_text())["results"] == rows
    assert main([*command, "--supernets", "0", "1", "--orders", "importance", "--task", "library"]) == 0
    more = json.loads(raw.read_text())["results"]
    assert more[: len(rows)] == rows and len(more) == len(rows) + 4 * 3
    assert {row["supernet"] for row in more[len(rows) :]} == {1}


def test_differences_are_paired() -> None:
    common = {"supernet": 0, "budget": 8, "allocation": "uniform", "steps": 60}
    rows = [
        {**common, "order": order, "inheritance": inheritance, "seed": seed, "score": score}
        for (order, inheritance), scores in {
            ("importance", "sliced"): (0.5, 0.7),
            ("reconstruction", "compensated"): (0.6, 0.82),
        }.items()
        for seed, score in enumerate(scores)
    ]
    assert cell(rows, 8, "uniform", ("importance", "sliced"), 60) == "0.6000"
    assert cell(rows, 8, "uniform", ("reconstruction", "compensated"), 60) == "0.7100 (+0.1100 ± 0.0100)"
