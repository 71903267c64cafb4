"""Pairing, turns and summaries, against their definitions; processes that answer and that die; files of raw numbers,
which are read as they were written; and tables.
"""

import json
import os
import statistics
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common import (
    BenchmarkError,
    Kept,
    Report,
    Row,
    compare,
    difference,
    markdown,
    ratio,
    read_results,
    start_server,
    summarise,
    take_turns,
)
from tests.benchmarks.tables import cells_of

VALUES = st.lists(st.floats(0.1, 100), min_size=1, max_size=20)


def test_sides_take_turns_and_the_order_is_reversed_in_every_second_round() -> None:
    calls: list[tuple[str, int]] = []

    def side(name: str, number: int) -> int:
        calls.append((name, number))
        return 10 * number + len(name)

    sides = {name: lambda number, name=name: side(name, number) for name in ("a", "bb", "ccc")}
    kept: list[tuple[str, int, int]] = []
    values = take_turns(sides, [7, 8, 9], warmup=2, on_value=lambda *value: kept.append(value))
    rounds = [calls[first : first + 3] for first in range(0, len(calls), 3)]
    assert [{number for _, number in calls_of} for calls_of in rounds] == [{7}, {7}, {7}, {8}, {9}]
    orders = ["".join(name[0] for name, _ in calls_of) for calls_of in rounds]
    assert orders == ["abc", "cba", "abc", "cba", "abc"]
    assert values == {"a": [71, 81, 91], "bb": [72, 82, 92], "ccc": [73, 83, 93]}
    assert kept == [(name, number, 10 * number + len(name)) for name, number in calls[6:]]


@given(VALUES)
def test_summaries_are_numpy_s(values: list[float]) -> None:
    summary = summarise(values)
    assert summary.median == pytest.approx(np.median(values))
    assert (summary.lower, summary.upper) == pytest.approx(np.quantile(values, (0.25, 0.75)))
    assert summary.mean == pytest.approx(np.mean(values))
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    assert summary.error == pytest.approx(error, abs=1e-12)


@given(VALUES, st.floats(0.5, 2))
def test_what_falls_on_all_sides_of_a_round_is_in_no_ratio(values: list[float], factor: float) -> None:
    """A side that takes a constant multiple has that ratio and no spread, however rounds differ."""
    summary = ratio([factor * value for value in values], values)
    assert (summary.median, summary.lower, summary.upper) == pytest.approx((factor, factor, factor))
    assert summary.error == pytest.approx(0, abs=1e-9)
    shifted = difference([value + factor for value in values], values)
    assert (shifted.mean, shifted.error) == pytest.approx((factor, 0), abs=1e-9)


def test_summaries_in_words() -> None:
    assert ratio([2.0, 12.0], [2.0, 4.0]).with_error() == "2.00 ± 1.00"
    assert difference([1.0], [3.0]).with_error(1, "+") == "-2.0 ± 0.0"
    assert summarise([1.0, 2.0, 3.0, 4.0, 5.0]).with_quartiles(1) == "3.0 (2.0 to 4.0)"


def doubling(connection: Connection, ready: str) -> None:
    """A server that doubles numbers, and dies of 0."""
    connection.send(ready)
    while (number := connection.recv()) is not None:
        connection.send(2 * number // (number != 0))


def test_a_server_answers_and_its_death_is_noticed() -> None:
    connection = start_server(doubling, "ready")
    connection.send(21)
    assert connection.recv() == 42
    connection.send(0)
    with pytest.raises(EOFError):
        connection.recv()


def test_a_file_says_what_it_was_made_with(tmp_path: Path) -> None:
    path = tmp_path / "raw" / "name.json"
    options = {"steps": [1, 2], "study": Path("results") / "demo", "only": ["layers: 3"]}
    report = Report("name", ["--steps", "1", "2", "--only", "layers: 3"], options, path)
    assert not report.saved
    report.save({"seconds": [0.1, 0.2]}, seeds=range(3))
    assert report.saved
    content = read_results(path, "name")
    assert content["command"] == "python -m benchmarks name --steps 1 2 --only 'layers: 3'"
    assert content["options"] == {"steps": [1, 2], "study": "results/demo", "only": ["layers: 3"]}
    assert content["seeds"] == [0, 1, 2]
    assert content["results"] == {"seconds": [0.1, 0.2]}
    assert content["machine"]["cores"] == os.cpu_count()
    assert content["machine"]["threads"] == torch.get_num_threads()
    assert content["machine"]["processor"]
    assert content["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("content", ["", "[]", '{"benchmark": "other"}'])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(BenchmarkError, match=r"file\.json: "):
        read_results(path, "name")


def test_what_is_kept_is_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("name", (), {}, tmp_path / "name.json")
    kept = Kept(report, {"steps": 3}, [1])
    assert kept("inner", lambda: kept("a", lambda: 1.5) + 1) == 2.5
    # As soon as a measurement is made, it is in the file.
    with pytest.raises(ZeroDivisionError):
        kept("b", lambda: 1 / 0)
    again = Kept(report, {"steps": 3}, [1, 2])
    assert again.measured == {"a": 1.5, "inner": 2.5}
    assert again("a", lambda: 1 / 0) == 1.5
    # A new value is what it will be when it is read again.
    assert again("c", lambda: {1: (2, 3)}) == {"1": [2, 3]} == Kept(report, {"steps": 3}, ()).measured["c"]
    with pytest.raises(BenchmarkError, match=r"name.json is of another run \(steps\): give another --json"):
        Kept(report, {"steps": 4}, [1])
    assert capsys.readouterr().err.splitlines()[:2] == ["a: 1.5000, 0 s", "inner: 2.5000, 0 s"]


def test_differences_are_between_scores_of_one_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "raw.json"

    def train(gain: float, seed: int) -> Row:
        # A seed moves all scores, and the gain a little.
        return {"before": 0.5, "after": 0.5 + 0.2 * seed + gain * (1 + 0.1 * seed), "seconds": 2.0, "losses": [1.0]}

    settings = {"none": 0.0, "good": 0.1}
    rows_of = compare(settings, "none", train, [1, 3], Report("recipes", (), {}, path), {})
    assert rows_of["good"][1]["after"] == pytest.approx(1.23)
    rows = cells_of(capsys.readouterr().out)
    assert rows["setting"] == ["before", "after", "minus none", "seconds"]
    gains = [0.1 * 1.1, 0.1 * 1.3]
    error = statistics.stdev(gains) / 2**0.5
    assert rows["good"][2:] == [f"{statistics.mean(gains):+.4f} ± {error:.4f}", "2.00"]
    assert rows["none"] == ["0.5000", "0.9000 ± 0.2000", "+0.0000 ± 0.0000", "2.00"]
    content = json.loads(path.read_text())
    assert content["seeds"] == [1, 3]
    assert content["results"]["measured"]["good, seed 3"] == rows_of["good"][1]


def test_tables_are_markdown_however_wide() -> None:
    wide = "x" * 200
    table = markdown(("name", "value"), [(wide, 1), ("b", "2.50")])
    assert cells_of(table) == {"name": ["value"], wide: ["1"], "b": ["2.50"]}
    lines = table.splitlines()
    assert len(lines) == 4 and set(lines[1]) == {"|", "-"}


def test_progress_is_not_part_of_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("name", (), {}, tmp_path / "name.json")
    report.progress("halfway")
    report.note("a line")
    report.table(("a", "b"), [(1, "[bold]")], "A title")
    printed = capsys.readouterr()
    assert printed.err == "halfway\n"
    assert printed.out.startswith("a line\n\nA title\n\n| a |")
    assert "[bold]" in printed.out
