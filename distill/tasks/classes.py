"""The classes of rows: which names are of the same class, their order, and those of a teacher."""

import re
import unicodedata
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from itertools import groupby
from typing import Any

import numpy as np

from distill.tasks.encoding import Encoded
from distill.tasks.splits import Split, TaggedSplit
from distill.tasks.task import Task, TaskData, TaskError
from foundation.errors import shortened

# How transformers calls classes without names.
NUMBERED = re.compile(r"label[ _-]?(\d+)", re.IGNORECASE)


def classes_of(names: Iterable[str]) -> tuple[str, ...]:
    """The classes that occur. If all are numbers, they are ordered by value, and "1" and "1.0" are one class, called by
    the shortest of its names; otherwise they are sorted as text.
    """
    numbers = {name: _number(name) for name in sorted(set(names), key=lambda name: (len(name), name))}
    if None in numbers.values():
        return tuple(sorted(numbers))
    shortest = {value: name for name, value in reversed(numbers.items())}
    return tuple(name for _, name in sorted(shortest.items()))


def places_of(names: Iterable[str], classes: Sequence[str]) -> dict[str, int]:
    """By each name that is of one of these classes, the index of the class; numbers are compared by their values."""
    places: dict[Hashable, int] = {name: place for place, name in enumerate(classes)}
    numbers = [_number(name) for name in classes]
    if None not in numbers:
        places |= {value: place for place, value in enumerate(numbers)}
    keys = {name: name if name in places else _number(name) for name in names}
    return {name: places[key] for name, key in keys.items() if key in places}


def alike(classes: Iterable[str]) -> list[tuple[str, ...]]:
    """The groups of classes whose names differ only in case, spaces or the form of characters."""
    ordered = sorted(classes, key=_folded)
    return [group for _, names in groupby(ordered, key=_folded) if len(group := tuple(names)) > 1]


def matched(labels: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """The place of each class of a task among the outputs of a model; None if they cannot be matched. They are matched
    by their names, if need be without case and spaces; or whole numbers from 0 on, also as LABEL_3, are the places.

    Args:
        names: of the model's classes; as transformers numbers them, LABEL_0 and so on, if they have none.
    """
    for key in (str, _folded, _value):
        places = {key(name): place for place, name in enumerate(names)}
        found = [places.get(key(label)) for label in labels]
        if key is _value and None in found:
            found = [_place(label, len(names)) for label in labels]
        certain = key is not _value or len(labels) == len(names) or 0 in found
        if len(places) == len(names) and None not in found and len(set(found)) == len(found) and certain:
            return tuple(place for place in found if place is not None)
    return None


def with_classes_of(data: TaskData[Any], names: Sequence[str], *, all_of_them: bool) -> TaskData[Any]:
    """A task with the order of a model's classes, and their names if it has some; unchanged if they cannot be matched.

    Args:
        names: see `matched`.
        all_of_them: whether the model keeps its head, so that the task has all of its classes, also those that do not
            occur. Otherwise a model with more classes than the task changes nothing.
    """
    task = data.task
    places = matched(task.labels, names) if task.type.classes else None
    if places is None or (len(task.labels) < len(names) and not all_of_them):
        return data
    # F1 is that of the second class.
    if places != tuple(range(len(places))) and any(task.type.metrics[name].classes for name in task.metrics):
        return data
    called = list(names)
    if all(NUMBERED.fullmatch(name) for name in names):
        called = [str(number) for number in range(len(names))]
        for label, place in zip(task.labels, places, strict=True):
            called[place] = label
    splits = {name: _moved(getattr(data, name), places, len(called)) for name in ("train", "search", "dev")}
    return replace(data, task=replace(task, labels=tuple(called)), **splits)


def _moved(split: Any, places: Sequence[int], count: int) -> Any:
    """A split with the classes at other places among `count`."""
    if isinstance(split, TaggedSplit):
        return replace(split, tags=tuple(tuple(places[tag] for tag in tags) for tags in split.tags))
    assert isinstance(split, Split)
    if isinstance(split.labels[0], tuple):
        moved_NC = np.zeros((len(split), count), int)
        moved_NC[:, places] = split.labels
        return replace(split, labels=tuple(map(tuple, moved_NC.tolist())))
    return replace(split, labels=tuple(places[label] for label in split.labels))


def weighted(rows: Encoded, task: Task, chosen: str | Mapping[str, float]) -> Encoded:
    """Training rows with the weights of their classes in the loss with labels, scaled to a mean of 1 over the rows. Of
    rows with several classes, a class is weighted where they have it.

    Args:
        chosen: weights by the names of classes, 1 for all others; or "balanced": n / (number of classes x rows of the
            class), as in scikit-learn, and for several classes the same of having and of not having each.

    Raises:
        TaskError: there is no such class, or the rows have no classes.
    """
    classes = task.labels
    if rows.labels is None or rows.tagged or not task.type.classes:
        raise TaskError(f"class weights: the rows of a {task.task_type} have no classes")
    has_NC = rows.labels > 0 if task.type.multi_label else np.eye(len(classes), dtype=bool)[rows.labels]
    if isinstance(chosen, str):
        share_C = np.clip(has_NC.mean(axis=0), 1 / len(rows), 1 - 1 / len(rows))
        weights_NC = np.where(has_NC, 1 / share_C, 1 / (1 - share_C))
    else:
        of_classes_C, names = np.ones(len(classes)), dict[int, str]()
        for name, weight in chosen.items():
            place = matched((name,), classes)
            if place is None:
                raise TaskError(f"class weights: {shortened(name)} is not one of the classes {', '.join(classes)}")
            if (other := names.setdefault(place[0], name)) != name:
                raise TaskError(f"class weights: {shortened(other)} and {shortened(name)} are one class")
            of_classes_C[place[0]] = weight
        weights_NC = np.where(has_NC, of_classes_C, 1)
    weights = weights_NC if task.type.multi_label else weights_NC[has_NC]
    return replace(rows, weights=(weights / weights.mean()).astype(np.float32))


def _number(name: str) -> Decimal | None:
    try:
        value = Decimal(name)
    except InvalidOperation:
        return None
    return value if value.is_finite() and "_" not in name else None


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name)).strip().casefold()


def _value(name: str) -> Hashable:
    """The number that a name is or, as LABEL_3, ends in; otherwise the name without case and spaces."""
    numbered = NUMBERED.fullmatch(name.strip())
    value = Decimal(numbered[1]) if numbered else _number(name)
    return _folded(name) if value is None else value


def _place(label: str, count: int) -> int | None:
    value = _value(label)
    return int(value) if isinstance(value, Decimal) and 0 <= value < count and value == int(value) else None
