"""Tagging of words: files in the format of CoNLL, or data sets on the hub."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from distill.tasks.entities import OUTSIDE, place_and_type
from distill.tasks.readers import hub
from distill.tasks.readers.columns import check_columns
from distill.tasks.readers.texts import read_lines
from distill.tasks.splits import TaggedSplit
from distill.tasks.task import Task, TaskData, TaskError, hold_out
from distill.tasks.types import TOKEN_CLASSIFICATION
from foundation.errors import did_you_mean, shortened, warn_once


def _bio(*types: str) -> tuple[str, ...]:
    return (OUTSIDE, *(f"{place}-{name}" for name in types for place in "BI"))


HUB = {
    "conll2003": ("eriktks/conll2003", _bio("PER", "ORG", "LOC", "MISC")),
    "wnut17": ("leondz/wnut_17", _bio("corporation", "creative-work", "group", "location", "person", "product")),
}
"""The name on the hub, and the tags in the order of their numbers there."""

CONVERTED = "refs/convert/parquet"
"""The hub's own conversion of data sets that were published as scripts."""

HUB_SPLITS = ("train", "validation")

TASKS = (*HUB, "conll")
WITHOUT_FOLDER = "the task {name!r} reads files of your own: give their folder"
DEV_NAMES = ("dev", "valid", "validation")
SUFFIXES = (".conll", ".txt")
DOCUMENT, COMMENT = "-DOCSTART-", "#"


def load(name: str, data: Path | None = None) -> TaskData[TaggedSplit]:
    """A task of `TASKS`: the files train and dev (or valid) .conll or .txt in the folder `data`, else from the hub.

    The tags are those of the training file. Entities, in any scheme of `place_and_type`, are scored by their F1, other
    tags by accuracy.
    """
    if data is not None:
        train_file, dev_file = _files(data)
        sentences = list(read(train_file))
        tags = tags_of(word[1] for sentence in sentences for word in sentence)
        train, dev = _split(train_file, sentences, tags), _split(dev_file, read(dev_file), tags)
    elif name in HUB:
        data_set, tags = HUB[name]
        train, dev = (
            from_columns(data_set, hub.columns(data_set, split, revision=CONVERTED), tags) for split in HUB_SPLITS
        )
    else:
        raise TaskError(WITHOUT_FOLDER.format(name=name))
    other = [tag for tag in tags if tag != OUTSIDE and place_and_type(tag) is None]
    if other and len(other) < len(tags):
        where = train_file if data is not None else data_set
        warn_once(
            f"{where}: scores are accuracies of words, not F1 of entities: the tag {shortened(other[0])} has no place "
            "such as B- or I-"
        )
    try:
        task = Task(name, tags, TOKEN_CLASSIFICATION, ("accuracy",) if other else ("f1", "accuracy"))
    except ValueError as error:
        raise TaskError(f"{train_file if data is not None else data_set}: {error}") from None
    return TaskData(task, *hold_out(train), dev, ordered=train)


def task_type(name: str) -> str:
    return TOKEN_CLASSIFICATION


def sources(name: str, data: Path | None = None) -> list[Path | str]:
    if data is not None:
        return list(_files(data))
    if name not in HUB:
        raise TaskError(WITHOUT_FOLDER.format(name=name))
    return hub.sources(HUB[name][0], HUB_SPLITS, revision=CONVERTED)


def _files(folder: Path) -> tuple[Path, Path]:
    """The files of the training and of the dev rows."""
    return _file(folder, ("train",)), _file(folder, DEV_NAMES)


def _file(folder: Path, names: Sequence[str]) -> Path:
    known = [f"{name}{suffix}" for name in names for suffix in SUFFIXES]
    for name in known:
        if (folder / name).is_file():
            return folder / name
    raise TaskError(f"{folder}: has none of the files {', '.join(known)}")


Word = tuple[str, str, int]


def read(path: Path) -> Iterator[list[Word]]:
    """Read the sentences of a file: words, tags and line numbers.

    A line starts with a word and ends with its tag. Columns are separated by tabs, or by blanks if the line has no
    tabs. A blank line ends a sentence. Lines of -DOCSTART- are skipped, and so are comments: lines that begin with "#"
    before the first word of a sentence, and do not end in a tag of other lines or have another number of columns.
    """
    lines = read_lines(path)
    # Other spaces, such as those that are not broken, are part of words.
    cells = [line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell] for line in lines]
    begins, between = [], True
    for line in lines:
        begins.append(between and line.startswith(COMMENT))
        between = not line.strip(" \t") or (between and line.startswith((COMMENT, DOCUMENT)))
    plain = Counter((len(row), row[-1].strip()) for row, begin in zip(cells, begins, strict=True) if row and not begin)
    sentence: list[Word] = []
    for number, (line, row) in enumerate(zip(lines, cells, strict=True), 1):
        if not line.strip(" \t"):
            if sentence:
                yield sentence
            sentence = []
        elif line.startswith(DOCUMENT) or (begins[number - 1] and (len(row), row[-1].strip()) not in plain):
            continue
        elif len(row) < 2 or not row[0] or not row[-1].strip():
            raise TaskError(f"{path}:{number}: needs a word and its tag, separated by a tab or blank")
        else:
            sentence.append((row[0], row[-1].strip(), number))
    if sentence:
        yield sentence


def tags_of(tags: Iterable[str]) -> tuple[str, ...]:
    """The distinct tags, sorted, but with "O" first."""
    return tuple(sorted(set(tags), key=lambda tag: (tag != OUTSIDE, tag)))


def from_columns(where: str, table: dict[str, list], tags: tuple[str, ...]) -> TaggedSplit:
    """The rows of a table in the hub's layout: columns `tokens` and `ner_tags`, a tag by its number."""
    check_columns(where, ("tokens", "ner_tags"), table)
    rows = [(words, numbers) for words, numbers in zip(table["tokens"], table["ner_tags"], strict=True) if words]
    wrong = next((number for _, numbers in rows for number in numbers if not 0 <= number < len(tags)), None)
    if wrong is not None:
        raise TaskError(f"{where}: the tag number {wrong} is out of range; there are {len(tags)} tags")
    return TaggedSplit(tuple(tuple(words) for words, _ in rows), tuple(tuple(numbers) for _, numbers in rows))


def _split(path: Path, sentences: Iterable[list[Word]], tags: tuple[str, ...]) -> TaggedSplit:
    numbers = {tag: number for number, tag in enumerate(tags)}
    rows = []
    for sentence in sentences:
        for _, tag, line in sentence:
            if tag not in numbers:
                known = ", ".join(tags)
                raise TaskError(
                    f"{path}:{line}: unknown tag {shortened(tag)}{did_you_mean(tag, tags)} (in training: {known})"
                )
        rows.append(sentence)
    if not rows:
        raise TaskError(f"{path}: no sentences")
    return TaggedSplit(
        tuple(tuple(word for word, _, _ in sentence) for sentence in rows),
        tuple(tuple(numbers[tag] for _, tag, _ in sentence) for sentence in rows),
    )
