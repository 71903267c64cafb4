"""Extractive question answering: SQuAD 1.1 and 2.0, from their JSON files or the hub."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distill.tasks.readers import hub
from distill.tasks.readers.columns import SURROGATES, check_columns
from distill.tasks.splits import QuestionSplit
from distill.tasks.task import Task, TaskData, TaskError, hold_out
from distill.tasks.types import QUESTION_ANSWERING
from foundation.errors import shortened

TASKS = {"squad": "v1.1", "squad_v2": "v2.0"}
"""The version of the official files."""

HUB = {name: f"rajpurkar/{name}" for name in TASKS}
HUB_SPLITS = ("train", "validation")


def load(name: str, data: Path | None = None) -> TaskData[QuestionSplit]:
    """Load SQuAD 1.1 (`squad`) or 2.0 (`squad_v2`) from the folder `data`, else from the hub.

    The folder, or its subfolder with the task's name, has the files train*v1.1.json and dev*v1.1.json (or v2.0; or
    train.json and dev.json).

    Raises:
        TaskError: the data is missing or has another format, or SQuAD 1.1 has a question without an answer.
    """
    if data is None:
        places = [f"{HUB[name]} ({split})" for split in HUB_SPLITS]
        splits = [from_columns(HUB[name], hub.columns(HUB[name], split)) for split in HUB_SPLITS]
    else:
        files = [_file(name, data, split) for split in ("train", "dev")]
        places, splits = [str(file) for file in files], [read(file) for file in files]
    for place, split in zip(places, splits, strict=True):
        if name == "squad" and not all(split.answers):
            first = split.ids[split.answers.index(())]
            raise TaskError(f"{place}: the question {shortened(first)} has no answer: use the task squad_v2")
    task = Task(name, (), QUESTION_ANSWERING, ("f1", "exact_match"))
    return TaskData(task, *hold_out(splits[0]), splits[1], ordered=splits[0])


def task_type(name: str) -> str:
    return QUESTION_ANSWERING


def sources(name: str, data: Path | None = None) -> list[Path | str]:
    if data is not None:
        return [_file(name, data, split) for split in ("train", "dev")]
    return hub.sources(HUB[name], HUB_SPLITS)


def _file(name: str, data: Path, split: str) -> Path:
    names = (f"{split}*{TASKS[name]}.json", f"{split}.json")
    for folder in (data, data / name):
        matching = [file for pattern in names for file in sorted(folder.glob(pattern))]
        if len(matching) > 1:
            raise TaskError(f"{folder}: there must be only one of {' and '.join(file.name for file in matching)}")
        if matching:
            return matching[0]
    raise TaskError(f"{data}: there is no {' or '.join(names)}, nor in a subfolder {name}")


Row = tuple[str, str, str, tuple[tuple[str, int], ...]]


def read(path: Path) -> QuestionSplit:
    """Read the questions of one official file. A question that is marked `is_impossible` has no answer."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}: not JSON: {error}") from None
    rows: list[Row] = []
    for number, article in enumerate(_value(str(path), content, "data", list)):
        for part, paragraph in enumerate(_value(f"{path} data[{number}]", article, "paragraphs", list)):
            place = f"{path} data[{number}].paragraphs[{part}]"
            context = _value(place, paragraph, "context", str)
            for question in _value(place, paragraph, "qas", list):
                name, asked = (_value(place, question, key, str) for key in ("id", "question"))
                answers = [] if question.get("is_impossible") else _value(place, question, "answers", list)
                spans = [(_value(place, a, "text", str), _value(place, a, "answer_start", int)) for a in answers]
                rows.append((name, asked, context, tuple(spans)))
    return _split(str(path), rows)


def _value(place: str, holder: Any, key: str, kind: type) -> Any:
    value = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(value, kind):
        raise TaskError(f"{place}: not in SQuAD's format: there is no {key!r} of type {kind.__name__}")
    if isinstance(value, str) and SURROGATES.search(value):
        raise TaskError(f"{place}: {key!r} has half of a character")
    return value


def from_columns(where: str, table: Mapping[str, Sequence]) -> QuestionSplit:
    """The rows of a table in the hub's layout: columns `id`, `question`, `context`, and `answers`, a dict of the lists
    `text` and `answer_start`.
    """
    names = ("id", "question", "context", "answers")
    check_columns(where, names, table)
    rows = zip(*(table[name] for name in names), strict=True)
    return _split(where, [(*row, tuple(zip(a["text"], a["answer_start"], strict=True))) for *row, a in rows])


def _split(where: str, rows: Sequence[Row]) -> QuestionSplit:
    if not rows:
        raise TaskError(f"{where}: no questions")
    try:
        return QuestionSplit(*zip(*rows, strict=True))
    except ValueError as error:
        raise TaskError(f"{where}: {error}") from None
