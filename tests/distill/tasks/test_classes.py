"""Which names are of one class, their order, and the order of a model's classes."""

from pathlib import Path
from typing import Any

import pytest

from distill.tasks.classes import alike, classes_of, matched, places_of, with_classes_of
from distill.tasks.readers.tables import read_rows
from distill.tasks.splits import Split, TaggedSplit
from distill.tasks.task import Task, TaskData
from distill.tasks.types import TOKEN_CLASSIFICATION

NUMBERED = tuple(f"LABEL_{number}" for number in range(12))


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["1", "0", "1.0", "0.0"], ("0", "1")),
        ([str(number) for number in range(12)], tuple(map(str, range(12)))),
        (["01", "00", "10"], ("00", "01", "10")),
        (["1", "1.0", "one"], ("1", "1.0", "one")),
        (["12345678901234567890", "12345678901234567891"], ("12345678901234567890", "12345678901234567891")),
    ],
)
def test_numbers_are_values(names: list[str], classes: tuple[str, ...]) -> None:
    assert classes_of(names) == classes
    assert places_of(["1.00", "7.5"], ("0", "1")) == {"1.00": 1}


def test_labels_of_json_are_values(tmp_path: Path) -> None:
    values = ["0", '"0"', "0.0", "1", '"1"', "1.0"]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"s": "a", "l": {value}}}\n' for value in values))
    split, classes = read_rows(tmp_path / "a.jsonl", "s", "l")
    assert classes == ("0", "1") and split.labels == (0, 0, 0, 1, 1, 1)


def test_nearly_the_same_names_get_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert alike(["Positive", "positive", "negative", "very bad", "Very  Bad"]) == [
        ("Positive", "positive"),
        ("very bad", "Very  Bad"),
    ]
    (tmp_path / "a.tsv").write_text("s\tl\na\tYes\nb\tyes\nc\tno\n")
    read_rows(tmp_path / "a.tsv", "s", "l")
    assert "the classes 'Yes' and 'yes' differ only in case or spaces" in caplog.text


@pytest.mark.parametrize(
    ("labels", "names", "places"),
    [
        (("negative", "neutral", "positive"), ("neutral", "negative", "positive"), (1, 0, 2)),
        (("negative", "positive"), ("NEGATIVE", "POSITIVE"), (0, 1)),
        (("not equivalent", "equivalent"), ("equivalent", "Not_Equivalent"), (1, 0)),
        (("0", "1", "3"), NUMBERED, (0, 1, 3)),
        (("LABEL_10", "LABEL_2", "LABEL_0"), NUMBERED, (10, 2, 0)),
        (("0", "1"), ("bad", "good"), (0, 1)),
        (("1", "2", "3"), ("3", "2", "1"), (2, 1, 0)),
        (("1", "2"), ("bad", "good", "better"), None),  # counted from 0 or from 1?
        (("1", "2"), ("LABEL_0", "LABEL_1"), None),
        (("bad", "good"), ("LABEL_0", "LABEL_1"), None),
    ],
)
def test_classes_of_a_model(labels: Any, names: Any, places: Any) -> None:
    assert matched(labels, names) == places


def data_of(labels: tuple[str, ...], metrics: tuple[str, ...] = ("accuracy",)) -> TaskData[Any]:
    rows = Split(("a", "b"), None, (0, 1))
    return TaskData(Task("t", labels, metrics=metrics), rows, rows, rows)


def test_the_order_of_a_model_is_that_of_the_task() -> None:
    swapped = with_classes_of(data_of(("no", "yes")), ("YES", "NO"), all_of_them=False)
    assert swapped.task.labels == ("YES", "NO")
    assert [part.labels for part in (swapped.train, swapped.search, swapped.dev)] == [(1, 0)] * 3
    some = data_of(("0", "3"))
    assert with_classes_of(some, NUMBERED, all_of_them=False) == some
    assert with_classes_of(some, NUMBERED, all_of_them=True).task.labels == tuple(map(str, range(12)))
    assert with_classes_of(some, NUMBERED, all_of_them=True).dev.labels == (0, 3)
    # F1 is that of the second class, which stays the second.
    of_f1 = data_of(("no", "yes"), ("f1",))
    assert with_classes_of(of_f1, ("yes", "no"), all_of_them=True) == of_f1
    tagged = TaggedSplit((("w", "v"),), ((0, 1),))
    tags = TaskData(Task("t", ("O", "B-X"), TOKEN_CLASSIFICATION), tagged, tagged, tagged)
    assert with_classes_of(tags, ("B-X", "O"), all_of_them=True).dev.tags == ((1, 0),)
