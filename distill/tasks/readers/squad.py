"""Answers that stand in a text: SQuAD 1.1 and 2.0, from their JSON or the hub; and the answers that logits say."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distill.tasks.readers import hub
from distill.tasks.task import QuestionSplit, Task, TaskData, TaskError, column_fault, hold_out
from distill.tasks.types import QUESTION_ANSWERING

if TYPE_CHECKING:
    from distill.tasks.encoding import Encoded

TASKS = {"squad": "v1.1", "squad_v2": "v2.0"}
"""The version of the official files."""

HUB = {name: f"rajpurkar/{name}" for name in TASKS}
HUB_SPLITS = ("train", "validation")

MAX_ANSWER = 30
"""Tokens that an answer has at most, as in the official baselines."""


def load(name: str, data: Path | None = None) -> TaskData[QuestionSplit]:
    """SQuAD 1.1 (`squad`) or 2.0 (`squad_v2`) from the folder `data`, which holds train*v1.1.json and dev*v1.1.json (or
    v2.0; or train.json and dev.json), or is that folder's parent; else from the hub.

    Raises:
        TaskError: the data is not there or of another form, or SQuAD 1.1 has a question without an answer.
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
            raise TaskError(f"{place}: the question {first!r} has no answer: take the task squad_v2")
    train, search = hold_out(splits[0])
    return TaskData(Task(name, (), QUESTION_ANSWERING, ("f1", "exact_match")), train, search, splits[1])


def sources(name: str, data: Path | None = None) -> list[Path | str]:
    """The files from which `load` reads, or the names of those that keep the data set from the hub.

    Raises:
        TaskError: as `load`, where no file needs to be read for that.
    """
    if data is not None:
        return [_file(name, data, split) for split in ("train", "dev")]
    return [file for split in HUB_SPLITS for file in hub.files(hub.table(HUB[name], split))]


def _file(name: str, data: Path, split: str) -> Path:
    names = (f"{split}*{TASKS[name]}.json", f"{split}.json")
    for folder in (data, data / name):
        found = [file for pattern in names for file in sorted(folder.glob(pattern))]
        if len(found) > 1:
            raise TaskError(f"{folder}: which one, {' or '.join(file.name for file in found)}?")
        if found:
            return found[0]
    raise TaskError(f"{data}: has no {' or '.join(names)}, nor has a folder {name} in it")


Row = tuple[str, str, str, tuple[tuple[str, int], ...]]


def read(path: Path) -> QuestionSplit:
    """The questions of one official file. A question that is marked `is_impossible` has no answer.

    Raises:
        TaskError: the file cannot be read, is of another form, or an answer is not where it should be.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}: no JSON: {error}") from None
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
        raise TaskError(f"{place}: not in SQuAD's form, for want of {key!r} (of type {kind.__name__})")
    return value


def from_columns(where: str, table: Mapping[str, Sequence]) -> QuestionSplit:
    """The rows of a table in the hub's layout: columns `id`, `question`, `context`, and `answers`, a dict of the lists
    `text` and `answer_start`.

    Raises:
        TaskError: as `read`.
    """
    names = ("id", "question", "context", "answers")
    fault = column_fault(names, table)
    if fault:
        raise TaskError(f"{where}: {fault}")
    rows = zip(*(table[name] for name in names), strict=True)
    return _split(where, [(*row, tuple(zip(a["text"], a["answer_start"], strict=True))) for *row, a in rows])


def _split(where: str, rows: Sequence[Row]) -> QuestionSplit:
    if not rows:
        raise TaskError(f"{where}: no questions")
    try:
        return QuestionSplit(*zip(*rows, strict=True))
    except ValueError as error:
        raise TaskError(f"{where}: {error}") from None


def predicted_answers(
    rows: "Encoded", logits: Sequence[np.ndarray], split: QuestionSplit, may_be_none: bool
) -> list[str]:
    """For each question the text of its best answer, by the logits (2, T) of first and last token of its windows.

    The best of all pairs of first and last token in one window's part of the context, at most `MAX_ANSWER` tokens
    apart, by the sum of their logits. Where there `may_be_none`, it is "" if that sum is below the lowest sum at the
    first token ([CLS]) of the windows.
    """
    assert rows.places is not None and rows.sources is not None
    best = np.full(len(split), -np.inf)
    none = np.full(len(split), np.inf)
    spans = np.zeros((len(split), 2), np.int64)
    for window, logits_2T in enumerate(logits):
        question = rows.sources[window]
        places_T2 = rows.places[rows.offsets[window] : rows.offsets[window + 1]]
        none[question] = min(none[question], logits_2T[:, 0].sum())
        inside = np.flatnonzero(places_T2[:, 0] >= 0)
        if not len(inside):
            continue
        first_S, last_S = logits_2T[:, inside]
        followed = np.concatenate([last_S, np.full(MAX_ANSWER - 1, -np.inf)])
        sums_SA = first_S[:, None] + np.lib.stride_tricks.sliding_window_view(followed, MAX_ANSWER)
        start, more = np.unravel_index(sums_SA.argmax(), sums_SA.shape)
        if sums_SA[start, more] > best[question]:
            best[question] = sums_SA[start, more]
            spans[question] = places_T2[inside[start], 0], places_T2[inside[start + more], 1]
    return [
        "" if may_be_none and none[row] > best[row] else context[slice(*spans[row])]
        for row, context in enumerate(split.contexts)
    ]
