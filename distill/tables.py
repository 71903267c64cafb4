"""Labelled rows from a user's own files."""

import math
from pathlib import Path
from typing import Any

from distill.kinds import CLASSIFICATION, REGRESSION
from distill.tasks import Split, Task, TaskData, TaskError, hold_out
from search_spaces.operations import did_you_mean, shown

SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")


class TableError(TaskError):
    """A file that is no table of labelled rows; the message says which, and what would be right."""


def table_task(
    train: Path,
    dev: Path,
    *,
    text: str,
    label: str,
    pair: str | None = None,
    labels: tuple[str, ...] | None = None,
    kind: str = CLASSIFICATION,
    metrics: tuple[str, ...] | None = None,
) -> TaskData[Split]:
    """A task of a user's own files, whose name is that of the column `label`.

    Args:
        text, pair, label, labels, kind: as `read_rows`; the classes are those of the training file.
        metrics: default: accuracy, or of a regression the correlations of Spearman and Pearson.

    Raises:
        TableError: as `read_rows`, or the kind has no such metric.
    """
    regression = kind == REGRESSION
    rows, classes = read_rows(train, text, label, pair, labels, kind)
    try:
        task = Task(label, classes, kind, metrics or (("spearmanr", "pearson") if regression else ("accuracy",)))
    except ValueError as error:
        raise TableError(str(error)) from None
    dev_rows, _ = read_rows(dev, text, label, pair, classes or None, kind)
    kept, search = hold_out(rows)
    return TaskData(task, kept, search, dev_rows)


def read_rows(
    path: Path,
    text: str,
    label: str,
    pair: str | None = None,
    labels: tuple[str, ...] | None = None,
    kind: str = CLASSIFICATION,
) -> tuple[Split, tuple[str, ...]]:
    """The rows of a file and the names of its classes, none of a regression.

    A .tsv file is tab-separated and not quoted, as GLUE's are; a .csv file is quoted where it must be. Both have a
    header.

    Args:
        text, pair, label: columns: the (first) sentence, the second one, the class or number.
        labels: names of the classes where they are known; else those that occur, in order.
        kind: "classification" or "regression".

    Raises:
        TableError: no such file or column, a file of another kind, no rows, an empty cell, an unknown class, or a label
            of a regression that is no number.
    """
    if kind not in (CLASSIFICATION, REGRESSION):
        raise TableError(f"rows of a table are a {CLASSIFICATION} or {REGRESSION}, not {kind!r}")
    table = _read(path)
    columns = [text, label, *([pair] if pair else [])]
    for column in columns:
        if column not in table.column_names:
            known = ", ".join(table.column_names)
            meant = did_you_mean(column, table.column_names)
            raise TableError(f"{path}: no column {column!r}{meant}; its columns are {known}")
    values = {column: [_text(value) for value in table.column(column).to_pylist()] for column in columns}
    if not values[text]:
        raise TableError(f"{path}: no rows")
    for column, cells in values.items():
        for number, cell in enumerate(cells):
            if not cell:
                raise TableError(f"{path}: row {number + 1} has nothing in the column {column!r}")
    texts, pairs = tuple(values[text]), tuple(values[pair]) if pair else None
    if kind == REGRESSION:
        return Split(texts, pairs, tuple(_number(path, row, cell) for row, cell in enumerate(values[label], 1))), ()
    found = tuple(sorted(set(values[label])))
    classes = labels or found
    unknown = next((name for name in found if name not in classes), None)
    if unknown is not None:
        raise TableError(f"{path}: the class {unknown!r} is none of {', '.join(classes)}")
    if len(classes) < 2:
        raise TableError(f"{path}: the column {label!r} has one class alone, {classes[0]!r}")
    numbers = {name: number for number, name in enumerate(classes)}
    return Split(texts, pairs, tuple(numbers[name] for name in values[label])), classes


def _number(path: Path, row: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TableError(f"{path}: row {row} has the label {shown(cell)}, which is no finite number")
    return value


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


def _read(path: Path) -> Any:
    import pyarrow
    from pyarrow import csv, json, parquet

    if path.suffix not in SUFFIXES:
        raise TableError(f"{path}: a table ends in {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".jsonl":
            return json.read_json(path)
        if path.suffix == ".parquet":
            return parquet.read_table(path)
        parse = csv.ParseOptions(newlines_in_values=True)
        if path.suffix == ".tsv":
            parse = csv.ParseOptions(delimiter="\t", quote_char=False)
        with csv.open_csv(path, parse_options=parse) as reader:
            names = reader.schema.names
        # As they stand: neither numbers nor missing values are to be guessed.
        convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
        return csv.read_csv(path, parse_options=parse, convert_options=convert)
    except (OSError, pyarrow.ArrowInvalid) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        raise TableError(f"{path}: {reason}") from None
