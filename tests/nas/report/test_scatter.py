"""Scores against latencies of exported models in one plane."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nas.compare import main
from nas.export.latency import ONNX, STUDENT, TEACHER, TORCH, LatencyReport, Timing
from nas.report.scatter import points
from tests.commands import Refused


def exported(folder: Path, score: float, *timed: tuple[str, str, int, float], metric: str = "f1") -> Path:
    """The files of an export that are drawn."""
    folder.mkdir()
    timings = [Timing(model, form, batch, ms - 1, ms, ms + 1) for model, form, batch, ms in timed]
    report = LatencyReport(16, timings, {}, {"processor": "a processor", "threads": 1})
    (folder / "latency.json").write_text(json.dumps(report.to_json()))
    models = {name: {metric: {"value": value}} for name, value in ((TEACHER, 0.9), (STUDENT, score))}
    (folder / "metrics.json").write_text(json.dumps({"metrics": [metric, "accuracy"], "models": models}))
    return folder


def test_models_in_one_plane(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    one = exported(
        tmp_path / "one", 0.8, (TEACHER, TORCH, 32, 90.0), (STUDENT, TORCH, 1, 1.0), (STUDENT, TORCH, 32, 20.0)
    )
    two = exported(
        tmp_path / "two", 0.7, (TEACHER, TORCH, 32, 91.0), (STUDENT, TORCH, 32, 11.0), (STUDENT, ONNX, 32, 7.0)
    )
    expected = [("teacher", 90.0, 0.9), ("one", 20.0, 0.8), ("two", 11.0, 0.7), ("two, ONNX", 7.0, 0.7)]
    assert points([one, two]) == (expected, "f1", 32)
    plot = tmp_path / "plane.svg"
    assert main([str(one), str(two), "--plot", str(plot)]) == 0
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert f"wrote {plot}" in capsys.readouterr().out
    assert "--plot" in refused(main, one, two, "--plot", tmp_path / "plane.what")
    assert "give the file an ending" in refused(main, one, two, "--plot", tmp_path / "plane")
    for option in (("--rows", 8), ("--tokens", 32), ("--labels", 2), ("--storage", "sqlite:///s.db"), ("--json",)):
        assert f"leave out {option[0]}" in refused(main, one, two, "--plot", plot, *option)
    other = exported(tmp_path / "other", 0.7, (STUDENT, TORCH, 32, 11.0), metric="accuracy")
    assert "their scores are accuracy and f1" in refused(main, one, other, "--plot", plot)
    fewer = exported(tmp_path / "fewer", 0.7, (STUDENT, TORCH, 8, 11.0))
    assert "with the same --batches" in refused(main, one, fewer, "--plot", plot)
    (two / "latency.json").unlink()
    assert "two has no latency.json: give folders that nas.export wrote" in refused(main, one, two, "--plot", plot)


def test_exports_of_the_same_name(tmp_path: Path) -> None:
    """They are called so by default."""
    folders = []
    for study in ("one", "two"):
        (tmp_path / study).mkdir()
        folders.append(exported(tmp_path / study / "final-export", 0.8, (STUDENT, TORCH, 1, 1.0)))
    assert [name for name, _, _ in points(folders)[0]] == list(map(str, folders))
