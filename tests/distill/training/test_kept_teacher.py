"""A teacher that is kept must make sense for its task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator
from transformers import BertConfig

from distill.tasks.encoding import Encoded
from distill.tasks.splits import Split
from distill.tasks.task import Task
from distill.tasks.types import MULTI_LABEL, REGRESSION
from distill.training.evaluation import EvalSet
from distill.training.kept_teacher import check_kept
from distill.training.teacher import TeacherError
from tests.tiny import SIZES

NAMES = ("bad", "fair", "good")
ROWS = 90
SEVERAL = Task("t", NAMES, MULTI_LABEL, ("f1_micro",))


class Saying(EvalSet):
    """An eval set on which a model says `said`."""

    said: Any

    def predictions(self, *arguments: object) -> Any:
        return self.said


def checked(folder: Path, said: Any, labels: Any, task: Task, **settings: Any) -> None:
    given = {"architectures": ["BertForSequenceClassification"], "num_labels": max(1, len(task.labels))}
    BertConfig(**{**SIZES, **given, **settings}).save_pretrained(folder)
    count = len(labels)
    encoded = Encoded(np.ones(count, np.int32), np.zeros(count, np.int8), np.arange(count + 1), None, task.task_type)
    rows = Saying(task, Split(("a",) * count, None, tuple(labels)), encoded, 0)
    object.__setattr__(rows, "said", np.asarray(said))
    check_kept(str(folder), None, rows, Accelerator(cpu=True))  # type: ignore[arg-type]


def test_a_permutation_is_named(tmp_path: Path) -> None:
    labels = [row % 3 for row in range(ROWS)]
    checked(tmp_path, labels, labels, Task("t", NAMES))
    # Output 0 is said where the class is "fair", output 1 where it is "good", output 2 where it is "bad".
    with pytest.raises(TeacherError, match=r"about 0\.0% .* bad, fair, good, .* 100\.0% in the order fair, good, bad:"):
        checked(tmp_path, [(label + 2) % 3 for label in labels], labels, Task("t", NAMES))
    with pytest.raises(TeacherError, match=r"about 10\.0% .* 90\.0% in the order good, bad"):
        two = [row % 2 for row in range(ROWS)]
        checked(tmp_path, [label ^ (row >= 9) for row, label in enumerate(two)], two, Task("t", ("bad", "good")))


def test_chance(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, ROWS)
    for _ in range(50):  # chance alone is not refused
        checked(tmp_path, rng.integers(0, 3, ROWS), labels, Task("t", NAMES))
    caplog.clear()
    most = int(np.bincount(labels).argmax())
    checked(tmp_path / "constant", [most] * ROWS, labels, Task("t", NAMES))
    assert f"no more than always saying '{NAMES[most]}': is it fine-tuned on this task?" in caplog.text


@pytest.mark.parametrize(
    ("settings", "task", "said"),
    [
        ({"problem_type": "multi_label_classification"}, Task("t", NAMES), "was trained for multi label"),
        ({"problem_type": "single_label_classification"}, SEVERAL, "was trained for single label .* is multi_label"),
        ({}, SEVERAL, 'set problem_type to "multi_label_classification" in its config.json if it does'),
        ({"problem_type": "regression"}, Task("t", NAMES), "was trained for regression; the task is classification"),
        ({"architectures": ["BertForTokenClassification"]}, Task("t", NAMES), "BertForTokenClassification; the task"),
    ],
)
def test_heads_of_something_else(settings: dict[str, Any], task: Task, said: str, tmp_path: Path) -> None:
    labels = [row % 3 for row in range(ROWS)]
    with pytest.raises(TeacherError, match=said):
        checked(tmp_path, labels, labels, task, **settings)


def test_any_number_of_classes(tmp_path: Path) -> None:
    labels = [(1, 0, row % 2) for row in range(ROWS)]
    checked(tmp_path, labels, labels, SEVERAL, problem_type="multi_label_classification")


def test_numbers(tmp_path: Path) -> None:
    labels, task = [float(row) for row in range(ROWS)], Task("t", (), REGRESSION, ("pearson",))
    checked(tmp_path, labels, labels, task)
    with pytest.raises(TeacherError, match=r"have the correlation -1\.00 with the labels"):
        checked(tmp_path, labels[::-1], labels, task)
