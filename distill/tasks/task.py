"""What is predicted, and the rows to learn it from: the values that every reader of a data set makes.

A reader is a module with `TASKS`, the names it knows, and `load(name, data)`.
"""

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from distill.tasks.metrics import METRICS
from distill.tasks.types import CLASSIFICATION, QUESTION_ANSWERING, REGRESSION, TOKEN_CLASSIFICATION
from search_spaces.errors import UserError, did_you_mean, shortened


class TaskError(UserError, ValueError):
    """There is no such task, or its data cannot be read; the message says which, and what would be right."""


@dataclass(frozen=True)
class Task:
    """What is predicted: ``labels[i]`` is the name of class ``i``; a regression and answers to questions have none.

    ``metrics``, any of :data:`distill.tasks.metrics.METRICS` of the task's kind; the first is the score.
    """

    name: str
    labels: tuple[str, ...] = ()
    kind: str = CLASSIFICATION
    metrics: tuple[str, ...] = ("accuracy",)

    def __post_init__(self) -> None:
        where = f"Task {self.name!r}"
        if self.kind not in METRICS:
            meant = did_you_mean(self.kind, METRICS)
            raise ValueError(f"{where}: unknown kind {self.kind!r}{meant} (kinds: {', '.join(METRICS)})")
        classes = self.kind in (CLASSIFICATION, TOKEN_CLASSIFICATION)
        if classes and (len(self.labels) < 2 or len(set(self.labels)) != len(self.labels)):
            raise ValueError(f"{where}: needs two or more distinct labels, not {self.labels}")
        if not classes and self.labels:
            raise ValueError(f"{where}: the kind {self.kind} has no classes, but there are labels")
        known = METRICS[self.kind]
        for metric in self.metrics:
            if metric not in known:
                meant = did_you_mean(metric, known)
                raise ValueError(f"{where}: unknown metric {metric!r}{meant} ({self.kind} has {', '.join(known)})")
        if not self.metrics:
            raise ValueError(f"{where}: needs a metric: {', '.join(known)}")
        if self.kind == CLASSIFICATION and "f1" in self.metrics and len(self.labels) != 2:
            raise ValueError(f"{where}: F1 is of two classes, not {len(self.labels)}")


@dataclass(frozen=True)
class Split:
    """Rows of a classification or regression: ``texts``, on two sentences also ``pairs`` (the second ones), and
    class indices (int) or numbers (float).
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    labels: tuple[int, ...] | tuple[float, ...]

    def __post_init__(self) -> None:
        _check_lengths(self, self.texts, self.labels, *([] if self.pairs is None else [self.pairs]))

    def __len__(self) -> int:
        return len(self.texts)

    def keys(self) -> Sequence[Hashable]:
        """What rows have in common that must not be divided."""
        return self.texts if self.pairs is None else list(zip(self.texts, self.pairs, strict=True))

    def take(self, rows: Sequence[int]) -> "Split":
        """These rows, in this order."""
        pairs = None if self.pairs is None else tuple(self.pairs[row] for row in rows)
        return Split(tuple(self.texts[row] for row in rows), pairs, tuple(self.labels[row] for row in rows))


@dataclass(frozen=True)
class TaggedSplit:
    """Sentences: the words of each, and the class index of each word's tag."""

    words: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        _check_lengths(self, self.words, self.tags)
        for row, (words, tags) in enumerate(zip(self.words, self.tags, strict=True)):
            if len(words) != len(tags) or not words:
                raise ValueError(f"TaggedSplit: row {row} has {len(words)} words and {len(tags)} tags")

    def __len__(self) -> int:
        return len(self.words)

    def keys(self) -> Sequence[Hashable]:
        """As `Split.keys`."""
        return self.words

    def take(self, rows: Sequence[int]) -> "TaggedSplit":
        """As `Split.take`."""
        return TaggedSplit(tuple(self.words[row] for row in rows), tuple(self.tags[row] for row in rows))


@dataclass(frozen=True)
class QuestionSplit:
    """Questions, each about a context in which its answers stand: (text, first character); none where there is no
    answer.
    """

    ids: tuple[str, ...]
    questions: tuple[str, ...]
    contexts: tuple[str, ...]
    answers: tuple[tuple[tuple[str, int], ...], ...]

    def __post_init__(self) -> None:
        _check_lengths(self, self.ids, self.questions, self.contexts, self.answers)
        for name, context, answers in zip(self.ids, self.contexts, self.answers, strict=True):
            for text, start in answers:
                if not text or start < 0 or context[start : start + len(text)] != text:
                    there = shortened(context[max(0, start) : max(0, start) + len(text)])
                    raise ValueError(f"question {name!r}: at character {start} is not {shortened(text)}, but {there}")

    def __len__(self) -> int:
        return len(self.questions)

    def keys(self) -> Sequence[Hashable]:
        """As `Split.keys`: questions about the same context."""
        return self.contexts

    def take(self, rows: Sequence[int]) -> "QuestionSplit":
        """As `Split.take`."""
        columns = (self.ids, self.questions, self.contexts, self.answers)
        return QuestionSplit(*(tuple(column[row] for row in rows) for column in columns))  # type: ignore[arg-type]


AnySplit = Split | TaggedSplit | QuestionSplit
S = TypeVar("S", Split, TaggedSplit, QuestionSplit)

SPLITS: dict[str, type[AnySplit]] = {
    CLASSIFICATION: Split,
    REGRESSION: Split,
    TOKEN_CLASSIFICATION: TaggedSplit,
    QUESTION_ANSWERING: QuestionSplit,
}


@dataclass(frozen=True)
class TaskData(Generic[S]):
    """A task with its rows: ``search`` scores candidates while searching, ``dev`` gives the final numbers."""

    task: Task
    train: S
    search: S
    dev: S

    def __post_init__(self) -> None:
        for name in ("train", "search", "dev"):
            rows: AnySplit = getattr(self, name)
            where = f"task {self.task.name!r}, {name}"
            if not isinstance(rows, SPLITS[self.task.kind]):
                raise ValueError(f"{where}: a {type(rows).__name__} is no rows of a {self.task.kind}")
            if not len(rows):
                raise ValueError(f"{where}: no rows")
            if self.task.labels:
                classes: Any = rows.labels if isinstance(rows, Split) else getattr(rows, "tags", ())
                found = {tag for row in classes for tag in (row if isinstance(row, tuple) else (row,))}
                if found - set(range(len(self.task.labels))):
                    raise ValueError(f"{where}: classes {min(found)} to {max(found)}, of {len(self.task.labels)}")
            elif isinstance(rows, Split) and not all(map(math.isfinite, rows.labels)):
                raise ValueError(f"{where}: a label is not finite")


HELD_OUT = 2_000
"""The most training rows that are kept back to score candidates while searching."""


def hold_out(train: S, seed: int = 0) -> tuple[S, S]:
    """Training rows without the search split, and that: a tenth of the rows, at most `HELD_OUT` (or a few more: rows
    with the same text, and questions about the same context, stay together).

    Raises:
        TaskError: there are too few rows.
    """
    keys = train.keys()
    copies = Counter(keys)
    wanted = min(HELD_OUT, max(1, len(train) // 10))
    held: set[Hashable] = set()
    for row in np.random.default_rng(seed).permutation(len(train)):
        if wanted <= 0:
            break
        if keys[row] not in held:
            held.add(keys[row])
            wanted -= copies[keys[row]]
    rest = [row for row, key in enumerate(keys) if key not in held]
    if not rest:
        raise TaskError(f"{len(train)} training rows are too few to keep some back for the search")
    return train.take(rest), train.take([row for row, key in enumerate(keys) if key in held])


def column_fault(wanted: Iterable[str], names: Iterable[str]) -> str:
    """What is wrong where the columns of a table are not to have one, and but one, of each of these names; else ""."""
    columns = list(names)
    for name in wanted:
        if columns.count(name) != 1:
            known = ", ".join(shortened(column)[1:-1] for column in columns[:SHOWN])
            more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
            found = f"{columns.count(name)} columns {name!r}" if name in columns else f"no column {name!r}"
            meant = "" if name in columns else did_you_mean(name, columns)
            return f"{found}{meant}; its columns are {known}{more}"
    return ""


SHOWN = 12
"""The most columns that an error names."""


def finite(text: str) -> float | None:
    """The number that this is, None where it is none or beyond float32, in which labels are kept."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= float(np.finfo(np.float32).max) else None


def joined(first: S, second: S) -> S:
    """The rows of both, in this order."""
    columns = ((getattr(first, field.name), getattr(second, field.name)) for field in fields(first))
    both: list[Any] = [None if a is None else a + b for a, b in columns]
    return type(first)(*both)


def save_split(split: AnySplit, path: Path) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(asdict(split)), encoding="utf-8")


def load_split(kind: str, path: Path) -> AnySplit:
    """Read what `save_split` wrote, rows of a task of this kind."""
    columns = json.loads(path.read_text(encoding="utf-8"))
    return SPLITS[kind](**{name: _tuples(column) for name, column in columns.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check_lengths(split: object, *columns: Sequence[object]) -> None:
    sizes = [len(column) for column in columns]
    if len(set(sizes)) != 1:
        raise ValueError(f"{type(split).__name__}: columns differ in length: {sizes}")
