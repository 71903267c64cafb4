"""Labeled rows from a user's own files."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from distill.tasks.classes import alike, classes_of, places_of
from distill.tasks.readers.columns import SURROGATES, check_columns, finite
from distill.tasks.readers.texts import lines_of, read_lines
from distill.tasks.splits import THRESHOLD, PassageSplit, SentenceSplit, Split
from distill.tasks.task import Task, TaskData, TaskError, hold_out
from distill.tasks.types import CLASSIFICATION, EMBEDDINGS, MULTI_LABEL, REGRESSION
from foundation.errors import beginning, reason, shortened, warn_once
from foundation.memory import limited_memory

SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
# The metrics of rows by their task type, the score first.
USUAL = {
    CLASSIFICATION: ("accuracy",),
    MULTI_LABEL: ("f1_micro", "f1_macro", "accuracy"),
    REGRESSION: ("spearmanr", "pearson"),
}


# How Python writes lists of texts and of numbers.
OF_PYTHON = re.compile(r"\[\s*(['\"\d].*)?\]", re.DOTALL)


class TableError(TaskError):
    """A file is not a valid table of labeled rows; the message says which one, and what is valid instead."""


def table_task(
    train: Path,
    dev: Path,
    *,
    text: str,
    label: str,
    pair: str | None = None,
    labels: tuple[str, ...] | None = None,
    task_type: str = CLASSIFICATION,
    metric: str | None = None,
    threshold: float = THRESHOLD,
) -> TaskData[Split]:
    """Load a task from a user's own files. Its name is that of the column `label`.

    Args:
        text, pair, label, labels, task_type: as `read_rows`; the classes are those of the training file.
        metric: the score, which comes before those of `USUAL`.
        threshold: see `Task`.

    Raises:
        TableError: as `read_rows`; or train and dev are the same file, or the task type has no such metric.
    """
    _check_different(train, dev)
    rows, classes = read_rows(train, text, label, pair, labels, task_type)
    try:
        usual = USUAL[task_type]
        task = Task(label, classes, task_type, tuple(dict.fromkeys((metric or usual[0], *usual))), threshold)
    except ValueError as error:
        raise TableError(str(error)) from None
    dev_rows, _ = read_rows(dev, text, label, pair, classes or None, task_type)
    return TaskData(task, *hold_out(rows), dev_rows, ordered=rows)


def text_task(train: Path, dev: Path, text: str) -> TaskData[SentenceSplit]:
    """Load sentences, of which a sentence encoder is taught the teacher's vectors, from the column `text` of a user's
    own files. The task's name is that of the column.

    Raises:
        TableError: there is no such file or column; the file has another format or no rows; a cell is empty or not
            text; or train and dev are the same file.
    """
    _check_different(train, dev)
    rows, dev_rows = (SentenceSplit(tuple(read_columns(file, [text])[text])) for file in (train, dev))
    return TaskData(Task(text, (), EMBEDDINGS, ("cosine", "neighbours")), *hold_out(rows), dev_rows, ordered=rows)


def passage_task(train: Path, dev: Path, query: str, passage: str) -> TaskData[PassageSplit]:
    """Load pairs of a query and a passage from these columns of a user's own files, of which a reranker is taught the
    teacher's scores; the labels are 0. The task's name is that of the column `passage`.

    Raises:
        TableError: as `text_task`.
    """
    _check_different(train, dev)
    splits = []
    for file in (train, dev):
        columns = read_columns(file, [query, passage])
        queries, passages = tuple(columns[query]), tuple(columns[passage])
        splits.append(PassageSplit(queries, passages, (0.0,) * len(queries)))
    kept, search = hold_out(splits[0])
    return TaskData(Task(passage, (), REGRESSION, USUAL[REGRESSION]), kept, search, splits[1])


Reader = Callable[[str, str, Any], Any]


def read_columns(
    path: Path, columns: Sequence[str], readers: Mapping[str, Reader] = MappingProxyType({})
) -> dict[str, list[Any]]:
    """The text in these columns of a file, and in the columns of `readers` what these make of it.

    Args:
        readers: by column, (where the row is, column, cell) -> its value.

    Raises:
        TableError: as `text_task`, or as `readers`.
    """
    numbers, table = _read(path, columns)
    if not numbers:
        raise TableError(f"{path}: no rows")
    where = f"{path}: row " if path.suffix == ".parquet" else f"{path}:"
    values: dict[str, list[Any]] = {}
    for column, cells in table.items():
        read = readers.get(column, _text)
        values[column] = [read(f"{where}{number}", column, cell) for number, cell in zip(numbers, cells, strict=True)]
    return values


def _check_different(train: Path, dev: Path) -> None:
    if train.exists() and dev.exists() and train.samefile(dev):
        raise TableError(f"{dev}: this is the file of the training rows; scores are measured on others")


def read_rows(
    path: Path,
    text: str,
    label: str,
    pair: str | None = None,
    labels: tuple[str, ...] | None = None,
    task_type: str = CLASSIFICATION,
) -> tuple[Split, tuple[str, ...]]:
    """Read the rows of a file; returns them with the names of the classes, which are empty for a regression.

    A .tsv file is tab-separated without quoting, as GLUE's are; a .csv file may use quotes. Both have a header.

    Args:
        text, pair, label: columns: the (first) sentence, the second one, the class or number.
        labels: the names of the classes if they are known; by default those of `classes_of`, or if rows have a 0 or 1
            for each class instead of names, those of transformers.
        task_type: a key of `USUAL`.

    Raises:
        TableError: there is no such file or column; the file has another format or no rows; a cell is empty or not
            text; a class is unknown; a label of a regression is not a number; or all rows have the same label.
    """
    if task_type not in USUAL:
        raise TableError(f"the rows of a table are for {', '.join(USUAL)}, not {task_type!r}")
    columns = [text, label, *([pair] if pair else [])]
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise TableError(f"{path}: the column {twice!r} is named twice: text, pair and label must be different columns")
    several = task_type == MULTI_LABEL
    classes_of_row = _between_commas if path.suffix in (".tsv", ".csv") else _listed
    readers: dict[str, Reader] = {MULTI_LABEL: classes_of_row, REGRESSION: _number}
    values = read_columns(path, columns, {label: readers.get(task_type, _text)})
    texts, pairs = tuple(values[text]), tuple(values[pair]) if pair else None
    if task_type == REGRESSION:
        numbers = tuple(values[label])
        if len(set(numbers)) < 2:
            raise TableError(f"{path}: the column {label!r} has only one value, {numbers[0]}")
        return Split(texts, pairs, numbers), ()
    if several:
        vectors = _vectors(path, label, values[label], labels)
        if vectors is not None:
            return Split(texts, pairs, vectors), labels or tuple(f"LABEL_{place}" for place in range(len(vectors[0])))
        values[label] = [list(map(str, cell)) for cell in values[label]]
    names = [name for cell in values[label] for name in cell] if several else values[label]
    classes = labels or classes_of(names)
    places = places_of(names, classes)
    unknown = next((name for name in names if name not in places), None)
    if unknown is not None:
        known = beginning(", ".join(classes), 1000)
        raise TableError(f"{path}: the class {shortened(unknown)} is not one of {known}")
    if len(classes) < 2:
        only = f"only one class, {shortened(classes[0])}" if classes else "no class in any row"
        raise TableError(f"{path}: the column {label!r} has {only}")
    for same in alike(classes) if labels is None else ():
        warn_once(f"{path}: the classes {' and '.join(map(shortened, same))} differ only in case or spaces")
    if several:
        of_rows = [{places[name] for name in cell} for cell in values[label]]
        cells = tuple(tuple(int(number in row) for number in range(len(classes))) for row in of_rows)
        return Split(texts, pairs, cells), classes
    return Split(texts, pairs, tuple(places[name] for name in names)), classes


def _vectors(
    path: Path, label: str, cells: Sequence[list[Any]], labels: tuple[str, ...] | None
) -> tuple[tuple[int, ...], ...] | None:
    """Lists of classes that are a 0 or 1 for each class; None if they are names of classes.

    Raises:
        TableError: they are numbers of which some are given twice, so no names, but not one for each class.
    """
    if not all(type(each) is int for cell in cells for each in cell):
        return None
    lengths = sorted({len(cell) for cell in cells})
    twice = any(len({*cell}) < len(cell) for cell in cells)
    if lengths[-1] < 2 or (not twice and (len(lengths) > 1 or {"0", "1"} <= {*(labels or ())})):
        return None
    wanted = lengths[-1] if labels is None else len(labels)
    if lengths != [wanted]:
        other = next(length for length in lengths if length != wanted)
        raise TableError(
            f"{path}: a row has {other} numbers in the column {label!r}; all need a 0 or 1 for each of {wanted} "
            "classes, or the names of theirs"
        )
    return tuple(map(tuple, cells))


def _number(place: str, column: str, cell: object) -> float:
    text = _text(place, column, cell)
    value = finite(text)
    if value is None:
        raise TableError(f"{place} has the label {shortened(text)}, which is not a finite number")
    return value


def _text(place: str, column: str, cell: object) -> str:
    if isinstance(cell, bytes | dict | list):
        raise TableError(f"{place} has {shortened(cell)} in the column {column!r}, which is not text")
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # JSON's 1 and 1.0 are one number
    # Tokenizers drop NULs, and NaN is how some tools write that there is nothing.
    text = "" if cell is None or cell != cell else str(cell).replace("\0", "").strip()
    if not text:
        raise TableError(f"{place} has nothing in the column {column!r}")
    if SURROGATES.search(text):
        raise TableError(f"{place} has half of a character in the column {column!r}: {shortened(text)}")
    return text


def _listed(place: str, column: str, cell: object) -> list[str] | list[int]:
    """The names of a list of classes; zeros and ones are numbers."""
    if not isinstance(cell, list):
        raise TableError(f"{place} has {shortened(cell)} in the column {column!r}, which is not a list")
    if all(isinstance(each, int | float) and each in (0, 1) for each in cell):
        return list(map(int, cell))
    return [_text(place, column, each) for each in cell]


def _between_commas(place: str, column: str, cell: str) -> list[str] | list[int]:
    """As `_listed`, in a file that has no lists."""
    if OF_PYTHON.fullmatch(cell.strip()):
        found = f"{shortened(cell)} in the column {column!r}"
        raise TableError(f"{place} has {found}; write names as in joy, fear")
    parts = [part.strip() for part in cell.split(",") if part.strip()]
    return _listed(place, column, [int(part) if part in ("0", "1") else part for part in parts])


# The lines at which rows begin, in Parquet their numbers, and the cells of each column.
Cells = tuple[Sequence[int], dict[str, list[Any]]]


def _read(path: Path, wanted: Sequence[str]) -> Cells:
    """The cells of these columns."""
    import pyarrow

    if path.suffix not in SUFFIXES:
        raise TableError(f"{path}: the name of a table must end in {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".jsonl":
            return _objects(path, wanted)
        return _parquet(path, wanted) if path.suffix == ".parquet" else _separated(path, wanted)
    except TaskError as error:
        raise TableError(str(error)) from None
    except (OSError, pyarrow.ArrowException, ValueError, OverflowError) as error:
        # An OverflowError: a cell for which Python has no value.
        problem = (isinstance(error, OSError) and error.strerror) or reason(error)
        raise TableError(f"{path}: {problem}") from None


def _objects(path: Path, wanted: Sequence[str]) -> Cells:
    rows: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise TableError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise TableError(
                    f"{path}:{number}: {shortened(row)} is not a JSON object; every line must be one, with the "
                    "columns as keys"
                )
            rows[number] = row
    if not rows:
        raise TableError(f"{path}: no rows")
    check_columns(path, wanted, dict.fromkeys(name for row in rows.values() for name in row))
    return list(rows), {name: [row.get(name) for row in rows.values()] for name in wanted}


def _cells(path: Path, table: Any, wanted: Sequence[str]) -> dict[str, list[Any]]:
    check_columns(path, wanted, table.column_names)
    return {name: table.column(name).to_pylist() for name in wanted}


# What reading Parquet may take: pyarrow with a small file, and what compression saves. A damaged file of a few hundred
# bytes may announce a dictionary of gigabytes, which pyarrow would allocate. 0.8 GB leave room for the rest of the
# process below one gigabyte, and text is compressed to a tenth, not to a sixty-fourth.
BASE_MEMORY, MEMORY_PER_BYTE = 800_000_000, 64


def _parquet(path: Path, wanted: Sequence[str]) -> Cells:
    from pyarrow import parquet

    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    limit = BASE_MEMORY + MEMORY_PER_BYTE * sum(file.stat().st_size for file in files)
    try:
        with limited_memory(limit):
            table = parquet.read_table(path)
            table.validate(full=True)
            return range(1, len(table) + 1), _cells(path, table, wanted)
    except MemoryError:
        raise TableError(
            f"{path}: reading it takes more than {limit / 1e9:,.1f} GB of memory: it is damaged, or repeats very long "
            "texts; write it anew, or as .jsonl"
        ) from None


# The end of a line, and a carriage return that ends none where lines end in line feeds.
END, LONE = re.compile(r"\r\n?|\n"), re.compile(r"\r(?!\n)")
QUOTED = re.compile(r'(?<![^,\r\n])"(?:[^"]++|"")*+"')
# How pyarrow calls a row, the header being the first.
FAULT = re.compile(r"CSV parse error: Row #(\d+): (.*)", re.DOTALL)


def _separated(path: Path, wanted: Sequence[str]) -> Cells:
    import pyarrow

    text, mark = "".join(lines_of(path)).replace("\0", ""), ""  # see `_text`
    end = END.search(text)
    if end is not None and end[0] != "\r" and LONE.search(text):
        # pyarrow would end a row there: a character that the file does not have stands for it.
        mark = next(each for each in ("\u240d", *map(chr, range(0xE000, 0xF900))) if each not in text)
        text = LONE.sub(mark, text)
    lines = _first_lines(QUOTED.sub(lambda cell: END.sub("\0", cell[0]), text) if path.suffix == ".csv" else text)
    try:
        table = _table(text.encode(), "," if path.suffix == ".csv" else "\t")
    except pyarrow.ArrowInvalid as error:
        fault = FAULT.fullmatch(str(error))
        if fault is None or int(fault[1]) > len(lines):
            raise
        raise TableError(f"{path}:{lines[int(fault[1]) - 1]}: {reason(ValueError(fault[2]))}") from None
    if len(lines) != 1 + len(table):  # of quotes in unusual places
        lines = list(range(1, len(table) + 2))
    cells = _cells(path, table, wanted)
    if mark:
        cells = {name: [cell.replace(mark, "\r") for cell in column] for name, column in cells.items()}
    return lines[1:], cells


def _first_lines(text: str) -> list[int]:
    """The lines at which the header and the rows begin; NULs stand for ends of lines inside of rows."""
    result, number = [], 1
    for row in END.split(text):
        if row:
            result.append(number)
        number += 1 + row.count("\0")
    return result


def _table(content: bytes, delimiter: str) -> Any:
    import pyarrow
    from pyarrow import csv

    parse = csv.ParseOptions(newlines_in_values=True)
    if delimiter == "\t":
        parse = csv.ParseOptions(delimiter=delimiter, quote_char=False)
    # In one block, which no row is too long for.
    block = csv.ReadOptions(block_size=min(max(1, len(content)), 2**31 - 1))
    given: Any = {"read_options": block, "parse_options": parse}
    with csv.open_csv(pyarrow.BufferReader(content), **given) as reader:
        names = reader.schema.names
    # As they stand: neither numbers nor missing values are to be guessed.
    convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
    return csv.read_csv(pyarrow.BufferReader(content), convert_options=convert, **given)
