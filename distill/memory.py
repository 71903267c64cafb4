"""Models and rows that are in memory, as folders and files for the commands."""

import json
import random
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from distill.training.progress import silence_transformers
from foundation.errors import UserError, naming_arguments, reason, shortened
from foundation.files import scratch_folder

# Every tenth row is measured on, if there are no others.
HELD_OUT = 10
SPLITS = ("train", "dev")


class RowsError(UserError, ValueError):
    """Rows cannot be used."""


class ModelError(UserError, ValueError):
    """What should be a model, with its tokenizer, is none."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """A context in which transformers shows neither warnings nor progress bars."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    silence_transformers()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """A context that leaves the global random numbers of Python, NumPy and torch as they were."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(cuda):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def source_of(model: Any, tokenizer: Any, folder: Path) -> str:
    """The folder or name of a model. One in memory is saved in `folder`, wherever it is; a model of transformers in
    float32, whatever its precision.

    Raises:
        ModelError: it is no model, or has no tokenizer or one too many.
    """
    if isinstance(model, str | Path):
        if tokenizer is not None:
            raise ModelError("tokenizer: a folder or name has its own; leave it out")
        return str(model)
    sentence_transformers = sys.modules.get("sentence_transformers")  # loaded if the model is one of its own
    if sentence_transformers is not None and isinstance(
        model, sentence_transformers.SentenceTransformer | sentence_transformers.CrossEncoder
    ):
        if tokenizer is not None:
            raise ModelError(f"tokenizer: a {type(model).__name__} has its own; leave it out")
        model.save(str(folder), create_model_card=False)
        return str(folder)
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise ModelError(
            f"model: must be a model of transformers, a SentenceTransformer, a folder or a name, not {kind}"
        )
    if tokenizer is None:
        raise ModelError("tokenizer: give that of the model")
    weights = {name: tensor.detach().float().cpu() for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_splits(
    folder: Path, train: Any, dev: Any, columns: Sequence[str], by: Sequence[str] = (), classes: str | None = None
) -> tuple[Path, Path]:
    """Write rows with these columns as `write_rows` does.

    Raises:
        RowsError: they are no rows, there are none or too few, or a row lacks a column.
    """
    splits = {"train": rows_of(train, "train", columns)}
    if dev is not None:
        splits["dev"] = rows_of(dev, "dev", columns)
    for name, rows in splits.items():
        if not rows:
            raise RowsError(f"{name}: there are no rows")
        for number, row in enumerate(rows, 1):
            for column in columns:
                if column not in row:
                    has = ", ".join(map(repr, row))
                    raise RowsError(f"{name}: row {number} has no column {column!r}; it has {has}")
        splits[name] = [{column: row[column] for column in columns} for row in rows]
    if dev is None and (few := len(splits["train"])) < 2 * HELD_OUT:
        raise RowsError(f"train: {few} rows are too few to hold every tenth out; give dev, too")
    return write_rows(folder, splits["train"], splits.get("dev"), by, classes)


def naming_memory(folder: Path, *models: str, held_out: bool) -> AbstractContextManager[None]:
    """As `naming_arguments`; the files of `write_rows` in this folder are called train and dev, and models that are
    saved in it have the names of these arguments.

    Args:
        held_out: whether the dev rows are training rows that were held out.
    """
    names = zip(SPLITS, ("train", "train (held out)" if held_out else "dev"), strict=True)
    files = {str(folder / f"{split}.jsonl"): name for split, name in names}
    return naming_arguments(files | {str(folder / name): name for name in models})


@contextmanager
def memory_folder(*models: str, held_out: bool) -> Iterator[Path]:
    """A temporary folder for what is in memory, with `quiet_transformers`, `own_random_numbers` and `naming_memory`,
    whose arguments these are.
    """
    with (
        scratch_folder() as folder,
        quiet_transformers(),
        own_random_numbers(),
        naming_memory(folder, *models, held_out=held_out),
    ):
        yield folder


def rows_of(data: Any, argument: str, columns: Collection[str]) -> list[dict[str, Any]]:
    """The rows of a `datasets.Dataset`, of a pandas data frame, or of any iterable of mappings.

    Args:
        argument: what messages call the data.
        columns: those in which the classes of a `Dataset` get their names.

    Raises:
        RowsError: it is none of these, or a row of a `Dataset` has no class.
    """
    if isinstance(data, Mapping):
        splits = ", ".join(map(repr, data))
        raise RowsError(f"{argument}: is a dictionary of {splits}: give one of its splits, such as data['train']")
    if isinstance(data, pandas.DataFrame):
        data = data.to_dict("records")
    features = getattr(data, "features", None)  # of a column of a `Dataset`, not by name
    features = {name: one for name, one in features.items() if name in columns} if isinstance(features, Mapping) else {}
    # Of a class, or of a list of classes.
    of_classes = {name: getattr(one, "feature", one) for name, one in features.items()}
    names = {name: one.names for name, one in of_classes.items() if hasattr(one, "names")}
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        kind = type(data).__name__
        raise RowsError(f"{argument}: must be a Dataset, a data frame or a list of dictionaries, not {kind}")
    rows: list[dict[str, Any]] = []
    for row in data:
        if not isinstance(row, Mapping):
            raise RowsError(f"{argument}: row {len(rows) + 1} must be a dictionary, not {type(row).__name__}")
        named = dict(row)
        for column in names.keys() & row.keys():
            value, known = _listed(row[column]), names[column]
            several = value if isinstance(value, list) else [value]
            if any(one not in range(len(known)) for one in several):
                raise RowsError(f"{argument}: row {len(rows) + 1} has no label in the column {column!r}, but {value!r}")
            named[column] = [known[one] for one in several] if isinstance(value, list) else known[value]
        rows.append(named)
    return rows


def write_rows(
    folder: Path,
    train: Sequence[Mapping[str, Any]],
    dev: Sequence[Mapping[str, Any]] | None = None,
    by: Sequence[str] = (),
    classes: str | None = None,
) -> tuple[Path, Path]:
    """Write the rows to train.jsonl and dev.jsonl in a folder, each at the line of its number. Without dev rows, every
    tenth row becomes one, or all rows with every tenth text in the columns `by`, so that none is in both files.

    Args:
        classes: the column of classes, of which every one stays in train.jsonl.

    Raises:
        RowsError: there are too few texts, or JSON has no such value.
    """
    parts = [(train, [True] * len(train)), (dev or (), [True] * len(dev or ()))]
    if dev is None:
        keys = [tuple(str(row[column]).strip() for column in by) or number for number, row in enumerate(train)]
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        if by and len(places) < HELD_OUT:
            what = f"different texts in the column {' and '.join(map(repr, by))}"
            raise RowsError(f"{len(places)} {what} are too few to hold every tenth out")
        held = [places[key] % HELD_OUT == HELD_OUT - 1 for key in keys]
        if classes is not None:
            names = [{*_names(row[classes])} for row in train]
            learned = set().union(*(some for some, out in zip(names, held, strict=True) if not out))
            rare = {key for key, some in zip(keys, names, strict=True) if not some <= learned}
            held = [out and key not in rare for key, out in zip(keys, held, strict=True)]
        parts = [(train, [not out for out in held]), (train, held)]
    one, two = (folder / f"{name}.jsonl" for name in SPLITS)
    for file, (rows, here) in zip((one, two), parts, strict=True):
        lines = (_line(file, *row) if kept else "\n" for row, kept in zip(enumerate(rows, 1), here, strict=True))
        file.write_text("".join(lines), encoding="utf-8")
    return one, two


def _names(label: Any) -> Iterable[str]:
    """The classes of a row, which may be several."""
    label = _listed(label)
    return map(str, label) if isinstance(label, list | tuple) else [str(label)]


def _listed(value: Any) -> Any:
    """An array or a tensor as a list, or a number of these as one."""
    return value.tolist() if hasattr(value, "tolist") else value


def _line(file: Path, number: int, row: Mapping[str, Any]) -> str:
    try:
        return f"{json.dumps(dict(row), default=_plain)}\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise RowsError(f"{file}:{number} cannot be used: {reason(error)}") from None


def _plain(value: Any) -> Any:
    """An array or a tensor as a list or number, a missing value of pandas as None, and other values that JSON lacks as
    text.

    Raises:
        TypeError: it has several values.
    """
    if hasattr(value, "tolist"):
        return _listed(value)
    if isinstance(value, Iterable):
        raise TypeError(f"it has {shortened(value)}, which is neither text nor a list")
    return None if pandas.isna(value) else str(value)
