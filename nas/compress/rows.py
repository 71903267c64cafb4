"""Reads texts without labels, and labels them with a classifier's predictions."""

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import pandas

from distill.defaults import LABEL, TEXT
from distill.memory import HELD_OUT, SPLITS, RowsError, rows_of, write_rows
from distill.tasks.long_texts import averaged
from distill.tasks.readers.columns import SURROGATES
from distill.tasks.readers.texts import check_text, lines_of
from distill.tasks.splits import Split
from distill.tasks.types import CLASSIFICATION, MULTI_LABEL, encode, task_type_of
from distill.training.evaluation import rows_logits
from distill.training.loop import make_accelerator
from distill.training.teacher import check_positions, load_tokenizer, load_unchanged
from foundation.errors import shortened


def read_lines(path: Path) -> list[str]:
    """The different lines of a text file that are not empty.

    Raises:
        distill.tasks.task.TaskError: it cannot be read, or is a table.
        RowsError: it has fewer than `HELD_OUT` of them.
    """
    check_text(path)
    return different([line.strip() for line in lines_of(path)], f"{path}", "lines of text")


def texts_of(data: Any, argument: str, column: str) -> list[str]:
    """The different texts in memory, or in a file as `read_lines`.

    Args:
        data: texts, rows with this column as `distill.memory.rows_of` knows them, or a file.
        argument: what messages call the data.

    Raises:
        RowsError: there are no texts, or too few, or one is neither a text nor a row.
    """
    if isinstance(data, str | Path):
        return read_lines(Path(data))
    if isinstance(data, Set):  # whose order is another one in every process
        data = sorted(data, key=str)
    # A column of a `Dataset` has features, too, but not by name.
    if isinstance(data, Iterable) and not isinstance(data, Mapping | pandas.DataFrame):
        data = data if isinstance(getattr(data, "features", None), Mapping) else [*data]
        if isinstance(data, list) and not (data and isinstance(data[0], Mapping)):
            for number, text in enumerate(data, 1):
                if not isinstance(text, str):
                    kind = type(text).__name__
                    raise RowsError(f"{argument}: row {number} must be a text, not {kind}; or all must be dictionaries")
            return different([text.strip() for text in data], argument, "texts")
    return different(text_column(rows_of(data, argument, ()), argument, column), argument, "texts")


def text_column(rows: Sequence[Mapping[str, Any]], argument: str, column: str) -> list[str]:
    """The texts in a column of rows, without surrounding space.

    Raises:
        RowsError: there are no rows, or one has no text there.
    """
    if not rows:
        raise RowsError(f"{argument}: there are no rows")
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(column), str) or not row[column].strip():
            has = ", ".join(map(repr, row))
            raise RowsError(f"{argument}: row {number} has no text in the column {column!r}; it has {has}")
    return [row[column].strip() for row in rows]


def different(texts: Sequence[str], where: str, what: str) -> list[str]:
    """The different texts that are not empty, so that no text is both trained on and measured on.

    Args:
        what: what messages call them.

    Raises:
        RowsError: there are fewer than `HELD_OUT`, or one has half of a character.
    """
    found = list(dict.fromkeys(filter(None, texts)))
    if (half := next(filter(SURROGATES.search, found), None)) is not None:
        raise RowsError(f"{where}: has half of a character in {shortened(half)}")
    if len(found) < HELD_OUT:
        raise RowsError(f"{where}: {len(found)} different {what} are too few; at least {HELD_OUT} are needed")
    return found


def write_texts(folder: Path, texts: Sequence[str], labeling: tuple[str, int, str, str] | None) -> dict[str, Any]:
    """Write texts as the rows of both splits, with the column `TEXT` and, if they are to be labeled, what a
    classifier predicts; returns the table of a configuration that describes them.

    Args:
        labeling: the arguments of `predicted_labels` beside the texts.

    Raises:
        RowsError: as `predicted_labels`.
    """
    rows: list[dict[str, Any]] = [{TEXT: text} for text in texts]
    table: dict[str, Any] = {"embeddings": True}
    if labeling is not None:
        labels, classes = predicted_labels(texts, *labeling)
        rows = [row | {LABEL: label} for row, label in zip(rows, labels, strict=True)]
        table = {"labels": classes, "multi_label": isinstance(labels[0], list)}
    return table | dict(zip(SPLITS, map(str, write_rows(folder, rows)), strict=True))


def predicted_labels(
    texts: Sequence[str], source: str, max_length: int, long_texts: str, device: str
) -> tuple[list[Any], tuple[str, ...]]:
    """The class that a trained classifier predicts for each text, or the list of classes where it predicts any number
    of them, and all of its classes in their order.

    Raises:
        RowsError: the model classifies no sentences, or predicts the same class for all of them.
    """
    model, tokenizer = load_unchanged(source).eval(), load_tokenizer(source)
    check_positions(source, model.config, max_length, "--max-length")
    task_type = task_type_of(model)
    if task_type is None or task_type.name not in (CLASSIFICATION, MULTI_LABEL):
        raise RowsError(f"the model {source!r} is no classifier of sentences: rows without labels need one")
    classes = tuple(model.config.id2label[number] for number in range(model.config.num_labels))
    rows = encode(
        tokenizer,
        Split(tuple(texts), None, (0,) * len(texts)),
        max_length,
        task_type=task_type.name,
        long_texts=long_texts,
    )
    logits_NC = rows_logits(model, rows, tokenizer.pad_token_id, make_accelerator(device))
    logits_NC = averaged(logits_NC, rows.sources)
    labels: list[Any] = [classes[number] for number in logits_NC.argmax(axis=-1)]
    if task_type.multi_label:
        labels = [[classes[number] for number in row_C.nonzero()[0]] for row_C in logits_NC >= 0]
    if all(label == labels[0] for label in labels):
        raise RowsError(f"the model {source!r} predicts {labels[0]!r} for all texts: give other texts")
    return labels, classes
