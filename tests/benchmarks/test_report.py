"""Files of raw numbers are read as they were written, and say what they were made with; tables are Markdown."""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.report import BenchmarkError, Report, markdown, read_results, to_json

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(TEXT, values, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_is_written_is_read(content: object) -> None:
    assert json.loads(to_json(content)) == content


def test_brackets_in_texts_stay_as_they_are() -> None:
    content = {"a": ["x [ y", "] z"], "b": [[1, 2], ["[CLS]  [SEP]"]], "[ c": [" ]", {"d": "[ "}]}
    assert json.loads(to_json(content)) == content


def test_lists_of_numbers_are_on_one_line() -> None:
    assert '"a": [1, 2.5, null]\n' in to_json({"a": [1, 2.5, None]})


def test_a_file_says_what_it_was_made_with(tmp_path: Path) -> None:
    path = tmp_path / "raw" / "name.json"
    options = {"steps": [1, 2], "study": Path("results") / "demo", "only": None}
    report = Report("name", ["--steps", "1", "2"], options, path)
    assert not report.saved
    report.save({"seconds": [0.1, 0.2]}, seeds=range(3))
    assert report.saved
    content = read_results(path, "name")
    assert content["command"] == "python -m benchmarks name --steps 1 2"
    assert content["options"] == {"steps": [1, 2], "study": "results/demo", "only": None}
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


def test_tables_are_markdown_however_wide() -> None:
    wide = "x" * 200
    lines = markdown(("name", "value"), [(wide, 1), ("b", "2.50")]).splitlines()
    assert len(lines) == 4
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line] == [
        ["name", "value"],
        [wide, "1"],
        ["b", "2.50"],
    ]
    assert set(lines[1]) == {"|", "-"}


def test_progress_is_not_part_of_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("name", (), {}, tmp_path / "name.json")
    report.progress("halfway")
    report.note("a line")
    report.table(("a", "b"), [(1, "[bold]")], "A title")
    printed = capsys.readouterr()
    assert printed.err == "halfway\n"
    assert printed.out.startswith("a line\n\nA title\n\n| a |")
    assert "[bold]" in printed.out
