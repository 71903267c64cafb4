"""The benchmark of the warm-up at its smallest size."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import main
from tests.benchmarks.tables import cells_of
from tests.nas.tiny_study import TinyStudy


def test_the_smallest_run(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plot = tmp_path / "warmup.json", tmp_path / "warmup.svg"
    command = ["--preset", str(tiny_study.preset), "--steps", "0", "2", "--candidates", "1", "--seeds", "1", "2"]
    assert main(["warmup", *command, "--json", str(path), "--plot", str(plot)]) == 0
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert set(cells_of(capsys.readouterr().out)) >= {"0 steps", "2 steps"}
    rows = json.loads(path.read_text())["results"]["measured"]
    assert set(rows) == {f"{steps} steps, seed {seed}" for steps in (0, 2) for seed in (1, 2)}
    assert all(len(row["losses"]) == tiny_study.config.candidate.steps for row in rows.values())
    assert main(["warmup", *command, "--base-model", "--json", str(tmp_path / "base.json")]) == 0
    base = json.loads((tmp_path / "base.json").read_text())["results"]["measured"]
    assert base.keys() == rows.keys() and all(row["losses"] != rows[name]["losses"] for name, row in base.items())
    assert all(0 <= row["after"] <= 1 and row["loss"] > 0 for row in rows.values())
