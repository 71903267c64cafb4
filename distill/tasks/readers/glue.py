"""The nine tasks of GLUE, and SNLI: from the official files, or from the hub.

The files are tab-separated without quoting: quotation marks are ordinary characters. A malformed line is an error, so
no row is dropped silently. QQP's official files have some: they are left out, with a warning that says how many.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.tasks.readers import hub
from distill.tasks.readers.columns import check_columns, finite
from distill.tasks.readers.texts import read_lines
from distill.tasks.splits import Split
from distill.tasks.task import Task, TaskData, TaskError, hold_out
from distill.tasks.types import REGRESSION
from foundation.errors import shortened

log = logging.getLogger(__name__)

ENTAILMENT = ("entailment", "not_entailment")
INFERENCE = ("entailment", "neutral", "contradiction")
SENTENCE, SENTENCES = ("sentence",), ("sentence1", "sentence2")
UNLABELED = ("-", "-1")


@dataclass(frozen=True)
class Source:
    """The location and format of one task's rows.

    Attributes:
        folder: the folder of train.tsv and `dev_file`.
        texts, label: columns of these files.
        header: the names of all columns if the files have no header line.
        numbers: whether the files have the classes' indices instead of their names.
        hub: data set and configuration on the hub, with columns `hub_texts` and `label`, and splits train and
            `hub_dev`.
        broken: whether the official files are known to have malformed lines or empty texts, which are skipped.
        unlabeled: whether rows without agreement of the annotators have the label "-" (-1 on the hub); they are
            skipped.
    """

    task: Task
    folder: str
    texts: tuple[str, ...]
    hub: tuple[str, str | None]
    hub_texts: tuple[str, ...]
    label: str = "label"
    header: tuple[str, ...] | None = None
    numbers: bool = False
    dev_file: str = "dev.tsv"
    hub_dev: str = "validation"
    broken: bool = False
    unlabeled: bool = False


GLUE = "nyu-mll/glue"

_MNLI = ("MNLI", SENTENCES, (GLUE, "mnli"), ("premise", "hypothesis"), "gold_label")

_SOURCES = (
    Source(
        Task("cola", ("unacceptable", "acceptable"), metrics=("matthews_correlation",)),
        "CoLA",
        SENTENCE,
        (GLUE, "cola"),
        SENTENCE,
        header=("source", "label", "mark", "sentence"),
        numbers=True,
    ),
    Source(Task("sst2", ("negative", "positive")), "SST-2", SENTENCE, (GLUE, "sst2"), SENTENCE, numbers=True),
    Source(
        Task("mrpc", ("not_equivalent", "equivalent"), metrics=("f1", "accuracy")),
        "MRPC",
        ("#1 String", "#2 String"),
        (GLUE, "mrpc"),
        SENTENCES,
        "Quality",
        numbers=True,
    ),
    Source(
        Task("stsb", (), REGRESSION, ("spearmanr", "pearson")), "STS-B", SENTENCES, (GLUE, "stsb"), SENTENCES, "score"
    ),
    Source(
        Task("qqp", ("not_duplicate", "duplicate"), metrics=("f1", "accuracy")),
        "QQP",
        ("question1", "question2"),
        (GLUE, "qqp"),
        ("question1", "question2"),
        "is_duplicate",
        numbers=True,
        broken=True,
    ),
    Source(Task("mnli", INFERENCE), *_MNLI, dev_file="dev_matched.tsv", hub_dev="validation_matched"),
    Source(Task("mnli_mismatched", INFERENCE), *_MNLI, dev_file="dev_mismatched.tsv", hub_dev="validation_mismatched"),
    Source(Task("qnli", ENTAILMENT), "QNLI", ("question", "sentence"), (GLUE, "qnli"), ("question", "sentence")),
    Source(Task("rte", ENTAILMENT), "RTE", SENTENCES, (GLUE, "rte"), SENTENCES),
    Source(Task("wnli", ("not_entailment", "entailment")), "WNLI", SENTENCES, (GLUE, "wnli"), SENTENCES, numbers=True),
    Source(
        Task("snli", INFERENCE),
        "snli",
        SENTENCES,
        ("stanfordnlp/snli", None),
        ("premise", "hypothesis"),
        unlabeled=True,
    ),
)
TASKS: Mapping[str, Source] = {source.task.name: source for source in _SOURCES}


def load(name: str, data: Path | None = None) -> TaskData[Split]:
    """Load a task of `TASKS` from the folder `data` (the task's own folder, or the parent of all tasks' folders), else
    from the hub. `mnli` is scored on the matched dev split, `mnli_mismatched` on the mismatched one.
    """
    source = TASKS[name]
    if data is None:
        splits = [from_columns(source, hub.columns(source.hub[0], s, source.hub[1])) for s in ("train", source.hub_dev)]
    else:
        splits = [read(source, file) for file in official_files(source, data, "train.tsv", source.dev_file)]
    return TaskData(source.task, *hold_out(splits[0]), splits[1], ordered=splits[0])


def trained_on(name: str) -> str:
    """The task, of any reader, on whose rows a model for this one is trained: itself, or another one that has the same
    training rows and another dev split.
    """
    return {"mnli_mismatched": "mnli"}.get(name, name)


def task_type(name: str) -> str:
    return TASKS[name].task.task_type


def sources(name: str, data: Path | None = None) -> list[Path | str]:
    source = TASKS[name]
    if data is not None:
        return list(official_files(source, data, "train.tsv", source.dev_file))
    return hub.sources(source.hub[0], ("train", source.hub_dev), source.hub[1])


def official_files(source: Source, data: Path, *names: str) -> list[Path]:
    """The task's files of these names, in its own folder or in the parent of all tasks' folders."""
    for folder in (data / source.folder, data):
        if (folder / names[0]).is_file():
            return [folder / name for name in names]
    wanted = " and ".join(names)
    raise TaskError(
        f"{data}: there is no {wanted} of the task {source.task.name!r}, nor in a subfolder {source.folder}"
    )


Row = tuple[str, Sequence[str], str]


def read(source: Source, path: Path) -> Split:
    """The rows of one official file."""
    cells, malformed = read_cells(path, (source.label, *source.texts), source.header, skip_malformed=source.broken)
    rows = [(f"{path}:{number}", texts, label) for number, (label, *texts) in cells]
    names = source.task.labels
    spelled = {str(number) if source.numbers else name: number for number, name in enumerate(names)}
    split = _split(source, str(path), rows, spelled)
    if malformed:
        log.warning("%s: %d of %d lines are no rows, and are left out", path, malformed, malformed + len(rows))
    return split


def read_cells(
    path: Path, columns: Sequence[str], header: Sequence[str] | None = None, skip_malformed: bool = False
) -> tuple[list[tuple[int, list[str]]], int]:
    """The cells of these columns in every line of an official file, with the line's number; and how many lines were
    skipped because they have another number of cells.

    Args:
        header: the names of all columns if the file has no header line.
    """
    lines = read_lines(path)
    if not lines:
        raise TaskError(f"{path}: the file is empty")
    first = 0 if header else 1
    header = header or lines[0].split("\t")
    check_columns(path, columns, header)
    places = [header.index(column) for column in columns]
    rows: list[tuple[int, list[str]]] = []
    malformed = 0
    for number, line in enumerate(lines[first:], first + 1):
        cells = line.split("\t")
        if len(cells) == len(header):
            rows.append((number, [cells[place] for place in places]))
        elif skip_malformed:
            malformed += 1
        else:
            raise TaskError(f"{path}:{number}: {len(cells)} tab-separated cells; the header has {len(header)}")
    return rows, malformed


def from_columns(source: Source, table: Mapping[str, Sequence]) -> Split:
    """The rows of a table in the hub's layout: columns `hub_texts` and `label`, a class by its number."""
    where = ":".join(filter(None, source.hub))
    check_columns(where, (*source.hub_texts, "label"), table)
    texts = zip(*(table[column] for column in source.hub_texts), strict=True)
    labeled = zip(texts, table["label"], strict=True)
    rows = ((f"{where}, row {number}", row, str(label)) for number, (row, label) in enumerate(labeled))
    return _split(source, where, rows, {str(number): number for number in range(len(source.task.labels))})


def _split(source: Source, where: str, rows: Iterable[Row], classes: Mapping[str, int]) -> Split:
    texts: list[Sequence[str]] = []
    labels: list[float] = []
    unlabeled = 0
    for place, row, label in rows:
        if source.unlabeled and label in UNLABELED:
            unlabeled += 1
            continue
        if not source.broken and not all(text.strip() for text in row):
            raise TaskError(f"{place}: a text is empty")
        texts.append(row)
        labels.append(_label(source, place, label, classes))
    if not texts:
        raise TaskError(f"{where}: no rows" + (f" but {unlabeled} without an agreed label" if unlabeled else ""))
    if unlabeled:
        log.warning("%s: %d rows without an agreed label are left out", where, unlabeled)
    first, *second = zip(*texts, strict=True)
    return Split(first, second[0] if second else None, tuple(labels))


def _label(source: Source, place: str, label: str, classes: Mapping[str, int]) -> float:
    if source.task.task_type == REGRESSION:
        value = finite(label)
        if value is None:
            raise TaskError(f"{place}: the label {shortened(label)} is not a finite number")
        return value
    if label not in classes:
        raise TaskError(f"{place}: the label {shortened(label)} is not one of {', '.join(classes)}")
    return classes[label]
