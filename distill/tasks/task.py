"""Tasks and their data: what is predicted, and the rows for training, search and evaluation."""

import json
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np

from distill.tasks.encoding import Encoded
from distill.tasks.long_texts import averaged
from distill.tasks.metrics import Metric, Rows, Score
from distill.tasks.splits import THRESHOLD, AnySplit, S
from distill.tasks.types import CLASSIFICATION, TaskType, get_task_type
from foundation.errors import UserError, did_you_mean


class TaskError(UserError, ValueError):
    """A task does not exist, or its data cannot be read; the message says which one, and what is valid instead."""


@dataclass(frozen=True)
class Task:
    """What is predicted.

    Attributes:
        labels: the name of each class; empty for regressions and question answering.
        task_type: the name of its type in `distill.tasks.types.TASK_TYPES`.
        metrics: any of the type's metrics; the first is the score.
        threshold: the probability from which a class is predicted, if rows may have any number of classes.

    Raises:
        ValueError: there is no such type or metric, or it is incompatible with these labels; or the threshold is not
            between 0 and 1.
    """

    name: str
    labels: tuple[str, ...] = ()
    task_type: str = CLASSIFICATION
    metrics: tuple[str, ...] = ("accuracy",)
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        where = f"Task {self.name!r}"
        try:
            known = self.type.metrics
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if self.type.classes and (len(self.labels) < 2 or len(set(self.labels)) != len(self.labels)):
            raise ValueError(f"{where}: needs two or more distinct labels, not {self.labels}")
        if not self.type.classes and self.labels:
            raise ValueError(f"{where}: {self.task_type} has no classes, but there are labels")
        if not 0 < self.threshold < 1:
            raise ValueError(f"{where}: the threshold must be between 0 and 1, not {self.threshold}")
        if not self.metrics:
            raise ValueError(f"{where}: needs a metric: {', '.join(known)}")
        for metric in self.metrics:
            if metric not in known:
                suggestion = did_you_mean(metric, known)
                has = f"{self.task_type} has {', '.join(known) or 'none'}"
                raise ValueError(f"{where}: unknown metric {metric!r}{suggestion} ({has})")
            classes = known[metric].classes
            if classes is not None and classes != len(self.labels):
                raise ValueError(f"{where}: {metric} is of {classes} classes, not {len(self.labels)}")

    @property
    def type(self) -> TaskType:
        """The task's type, which defines how its rows are encoded, learned, predicted and scored."""
        return get_task_type(self.task_type)

    def predict(self, rows: Encoded, logits: Sequence[np.ndarray], split: AnySplit) -> Sequence[Any]:
        """The predictions for the metrics, as `TaskType.predict` returns them; of a long text from its windows' mean
        logits.
        """
        assert self.type.predict is not None
        if self.type.head.pooled and rows.sources is not None:
            logits = list(averaged(np.stack(logits), rows.sources[: len(logits)]))
        if self.type.multi_label:
            offset = math.log(self.threshold / (1 - self.threshold))
            logits = [row - offset for row in logits]
        return self.type.predict(rows, logits, split, self.labels)

    @property
    def score_metric(self) -> Metric:
        """The first metric, which is the score."""
        return self.type.metrics[self.metrics[0]]


def contributions(task: Task, predictions: Rows, references: Rows) -> dict[str, np.ndarray]:
    """The contributions of the rows to all metrics of a task, of shape (N,) or (N, K).

    Args:
        predictions, references: one entry per row, as returned by `predict` and `TaskType.references`: a class index;
            for each class whether the row has it; a number; the class indices of a sentence's words (-1 if nothing is
            predicted); or the text of the predicted answer ("" for none) and the texts of the correct ones (empty if
            there is no answer).

    Raises:
        ValueError: there are no rows, or the numbers of predictions and references differ.
    """
    if len(predictions) != len(references) or not len(references):
        raise ValueError(f"score: {len(predictions)} predictions for {len(references)} rows")
    metrics = {name: task.type.metrics[name] for name in task.metrics}
    return {name: metric.contributions(predictions, references, task.labels) for name, metric in metrics.items()}


def scores_of(task: Task, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
    """All metrics of a task, given the contributions of the rows to each of them."""
    return {name: task.type.metrics[name].of_contributions(rows[name]) for name in task.metrics}


@dataclass(frozen=True)
class TaskData(Generic[S]):
    """A task with its rows: candidates are scored on `search` during the search, final scores are measured on `dev`.

    Attributes:
        ordered: the rows of `train` and `search` in the order of their source; None if there is none.
    """

    task: Task
    train: S
    search: S
    dev: S
    ordered: S | None = None

    def __post_init__(self) -> None:
        task_type = self.task.type
        for name in ("train", "search", "dev"):
            rows = getattr(self, name)
            where = f"task {self.task.name!r}, {name}"
            if task_type.split is None or not isinstance(rows, task_type.split):
                raise ValueError(f"{where}: a {type(rows).__name__} does not hold rows for {self.task.task_type}")
            if not len(rows):
                raise ValueError(f"{where}: no rows")
            problem = task_type.problem(rows, self.task.labels) if task_type.problem else ""
            if problem:
                raise ValueError(f"{where}: {problem}")


HELD_OUT = 2_000
"""The maximum number of training rows that are held out to score candidates during the search."""


def hold_out(train: S, seed: int = 0, fraction: float | None = None, last: bool = False) -> tuple[S, S]:
    """Split training rows into remaining training rows and the search split.

    The latter gets this fraction of the rows, by default a tenth but at most `HELD_OUT`. It may be slightly more: rows
    with the same text, and questions about the same context, stay together.

    Args:
        last: hold out exactly so many of the last rows, the last one first, instead of random ones.

    Raises:
        TaskError: there are too few rows.
    """
    keys = train.keys()
    copies = Counter(keys)
    wanted = max(1, min(HELD_OUT, len(train) // 10) if fraction is None else round(fraction * len(train)))
    if last and wanted < len(train):
        return train.take(range(len(train) - wanted)), train.take(range(len(train) - 1, len(train) - wanted - 1, -1))
    held: set[Hashable] = set()
    for row in np.random.default_rng(seed).permutation(len(train)):
        if wanted <= 0:
            break
        if keys[row] not in held:
            held.add(keys[row])
            wanted -= copies[keys[row]]
    rest = [row for row, key in enumerate(keys) if key not in held]
    if not rest:
        raise TaskError(f"{len(train)} training rows are too few to hold some out for the search")
    return train.take(rest), train.take([row for row, key in enumerate(keys) if key in held])


def save_split(split: Any, path: Path) -> None:
    """Write a JSON file of the split's columns."""
    path.write_text(json.dumps(asdict(split)), encoding="utf-8")


def load_split(task_type: str, path: Path) -> Any:
    """Read what `save_split` wrote: rows of a task of this type."""
    columns = json.loads(path.read_text(encoding="utf-8"))
    return get_task_type(task_type).split(**{name: _tuples(column) for name, column in columns.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
