"""The rows to compress with: from memory, or from a text file with predicted labels."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
import torch

from distill.tasks.types import CLASSIFICATION, task_type_of
from distill.training.loop import make_accelerator
from distill.training.teacher import check_positions, load_tokenizer, load_unchanged
from foundation.errors import UserError

# Every tenth row is measured on, if there are no others.
HELD_OUT = 10
BATCH = 64


class RowsError(UserError, ValueError):
    """Rows cannot be used."""


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not empty.

    Raises:
        RowsError: it cannot be read, or has fewer than `HELD_OUT` of them.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise RowsError(f"{path}: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}") from None
    if len(texts := [line for line in lines if line]) < HELD_OUT:
        raise RowsError(f"{path}: {len(texts)} lines of text are too few; at least {HELD_OUT} are needed")
    return texts


def rows_of(data: Any) -> list[dict[str, Any]]:
    """The rows of a `datasets.Dataset`, with the names of its classes, of a pandas data frame, or of any iterable of
    mappings.

    Raises:
        RowsError: it is none of these.
    """
    if isinstance(data, pandas.DataFrame):
        return list(data.to_dict("records"))
    names = {
        column: feature.names
        for column, feature in (getattr(data, "features", None) or {}).items()
        if hasattr(feature, "names")
    }
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise RowsError(f"rows must be a Dataset, a data frame or a list of dictionaries, not {type(data).__name__}")
    rows: list[dict[str, Any]] = []
    for row in data:
        if not isinstance(row, Mapping):
            raise RowsError(f"row {len(rows)} must be a dictionary, not {type(row).__name__}")
        for column in names.keys() & row.keys():
            if row[column] not in range(len(names[column])):
                raise RowsError(f"row {len(rows)} has no label in the column {column!r}, but {row[column]!r}")
        rows.append({column: names[column][value] if column in names else value for column, value in row.items()})
    return rows


def write_rows(
    folder: Path, train: Sequence[Mapping[str, Any]], dev: Sequence[Mapping[str, Any]] | None = None
) -> tuple[Path, Path]:
    """Write the rows to train.jsonl and dev.jsonl in a folder; without dev rows, every tenth row becomes one."""
    if dev is None:
        dev = train[HELD_OUT - 1 :: HELD_OUT]
        train = [row for number, row in enumerate(train) if number % HELD_OUT != HELD_OUT - 1]
    files = folder / "train.jsonl", folder / "dev.jsonl"
    for file, rows in zip(files, (train, dev), strict=True):
        file.write_text("".join(f"{json.dumps(dict(row), default=str)}\n" for row in rows), encoding="utf-8")
    return files


@torch.no_grad()
def predicted_labels(
    source: str, texts: Sequence[str], max_length: int, device: str
) -> tuple[list[str], tuple[str, ...]]:
    """The classes that a trained classifier predicts for texts, and all of its classes in their order.

    Raises:
        RowsError: the model classifies no sentences, or predicts the same class for all of them.
    """
    model, tokenizer = load_unchanged(source).eval(), load_tokenizer(source)
    check_positions(source, model.config, max_length, "--max-length")
    task_type = task_type_of(model)
    if task_type is None or task_type.name != CLASSIFICATION:
        raise RowsError(f"the model {source!r} is no classifier of sentences: rows without labels need one")
    accelerator = make_accelerator(device)
    model.to(accelerator.device)
    labels: list[str] = []
    for first in range(0, len(texts), BATCH):
        rows = list(texts[first : first + BATCH])
        given = tokenizer(rows, return_tensors="pt", padding=True, truncation=True, max_length=max_length)
        with accelerator.autocast():
            numbers = model(**given.to(accelerator.device)).logits.argmax(dim=-1).tolist()
        labels += [model.config.id2label[number] for number in numbers]
    if len(set(labels)) == 1:
        raise RowsError(f"the model {source!r} predicts {labels[0]!r} for all texts: give other texts")
    return labels, tuple(model.config.id2label[number] for number in range(model.config.num_labels))
