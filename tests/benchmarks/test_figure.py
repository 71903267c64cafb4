"""The picture of the benchmark `alternatives`, from the raw numbers in results/."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.common import read_results
from benchmarks.figure import points
from distill.cli import DONE, USER_ERROR
from nas.latency.onnx import INT8
from nas.latency.settings import TORCH
from tests.checkout import ROOT

RAW = ROOT / "results" / "raw"
COLA, SNLI, SNLI_INT8 = (RAW / f"alternatives-{name}.json" for name in ("cola", "snli", "snli-int8"))


def results(*files: Path) -> list[dict]:
    return [read_results(file, "alternatives")["results"] for file in files]


def test_points_are_the_rows_of_the_table() -> None:
    """As results/alternatives.md has them for CoLA, whose MILP allocation has two seeds."""
    rows = {
        point.kind: (round(point.difference.value, 4), round(point.speed, 2)) for point in points(results(COLA), TORCH)
    }
    assert rows == {"layers": (0.0077, 2.86), "uniform slice": (-0.0485, 3.42), "MILP allocation": (-0.0073, 3.37)}


def test_speeds_are_of_one_table() -> None:
    """The file has two tables of latencies, measured at different times."""
    (file,) = results(SNLI)
    first, second = (table for name, table in file["measured"].items() if name.startswith("latencies of"))
    assert first["teacher"] != second["teacher"]
    speeds = {point.speed for point in points([file], TORCH)}
    expected = {table["teacher"]["torch, 1"] / of["torch, 1"] for table in (first, second) for of in table.values()}
    assert len(speeds) == 8 and speeds <= expected


def test_a_panel_has_the_files_for_its_form() -> None:
    both, int8 = results(SNLI, SNLI_INT8), results(SNLI_INT8)
    assert list(points(both, INT8)) == list(points(int8, INT8))
    # Without a file for the form, all are shown, and the teacher's int8 file.
    kinds = [point.kind for point in points(results(COLA), INT8)]
    assert kinds[0] == "teacher" and len(kinds) == 4


def test_picture(tmp_path: Path) -> None:
    picture = tmp_path / "figure.png"
    columns = ["--task", "SNLI", str(SNLI), str(SNLI_INT8), "--task", "CoLA", str(COLA)]
    assert main(["figure", *columns, "--plot", str(picture)]) == DONE
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "SNLI"], "--task 'SNLI': name one or more files"),
        (["--task", "SNLI", str(RAW / "samplers.json")], "not written by `python -m benchmarks alternatives`"),
        (["--task", "SNLI", "none.json"], "none.json"),
        (["--task", "SNLI", str(SNLI), "--floor", "0.1"], "--floor 0.1: give a number below 0"),
    ],
)
def test_bad_input(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", *arguments, "--plot", str(tmp_path / "a.png")]) == USER_ERROR
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_unfinished_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(COLA.read_text())
    del content["results"]["measured"]["teacher"]
    (file := tmp_path / "begun.json").write_text(json.dumps(content))
    assert main(["figure", "--task", "CoLA", str(file), "--plot", str(tmp_path / "a.png")]) == USER_ERROR
    assert "begun.json: its run has not measured the teacher yet" in capsys.readouterr().err
