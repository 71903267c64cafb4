"""Tables of settings side by side, from trainings whose scores are known; and the benchmark of the warm-up."""

import json
from pathlib import Path
from statistics import mean, stdev
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import main
from benchmarks.report import Report
from benchmarks.training.settings import Row, compare
from tests.nas.tiny_study import TinyStudy

SETTINGS = {"none": 0.0, "good": 0.1, "bad": -0.1}


def rows_of(printed: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if "|" in line]
    return {name: cells for name, *cells in lines}


def test_differences_are_between_scores_of_one_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "raw.json"
    files: list[int] = []

    def train(gain: float, seed: int) -> Row:
        files.append(sum(map(len, json.loads(path.read_text())["results"].values())) if path.exists() else 0)
        # A seed moves all scores, and the gain a little.
        return {"before": 0.5, "after": 0.5 + 0.2 * seed + gain * (1 + 0.1 * seed), "seconds": 2.0}

    compare(SETTINGS, "none", train, [1, 3], ["good"], Report("recipes", (), {}, path))
    assert files == [0, 1, 2, 3]  # the file has every run as soon as it has ended
    rows = rows_of(capsys.readouterr().out)
    assert rows["setting"] == ["before", "after", "minus none", "seconds"]
    gains = [0.1 * 1.1, 0.1 * 1.3]
    error = stdev(gains) / 2**0.5
    assert rows["good"][2:] == [f"{mean(gains):+.4f} ± {error:.4f}", "2.00"]
    assert rows["none"] == ["0.5000", "0.9000 ± 0.2000", "+0.0000 ± 0.0000", "2.00"]
    assert "bad" not in rows
    content = json.loads(path.read_text())
    assert content["seeds"] == [1, 3]
    assert content["results"]["good"]["3"]["after"] == pytest.approx(1.23)


def test_the_warmup_s_benchmark(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "warmup.json"
    command = ["--preset", str(tiny_study.preset), "--steps", "0", "2", "--candidates", "1", "--seeds", "1", "2"]
    plot = tmp_path / "warmup.svg"
    assert main(["warmup", *command, "--json", str(path), "--plot", str(plot)]) == 0
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    rows = rows_of(capsys.readouterr().out)
    assert set(rows) >= {"0 steps", "2 steps"}
    results = json.loads(path.read_text())["results"]
    assert {name: set(by_seed) for name, by_seed in results.items()} == {"0 steps": {"1", "2"}, "2 steps": {"1", "2"}}
    steps = tiny_study.config.candidate.steps
    assert all(len(row["losses"]) == steps for of in results.values() for row in of.values())
    assert all(0 <= row["after"] <= 1 and row["loss"] > 0 for of in results.values() for row in of.values())
