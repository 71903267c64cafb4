"""The rows to compress with that are without labels: lines of a text file with predicted labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from distill.memory import HELD_OUT, RowsError
from distill.tasks.types import CLASSIFICATION, MULTI_LABEL, task_type_of
from distill.training.loop import make_accelerator
from distill.training.teacher import check_positions, load_tokenizer, load_unchanged

BATCH = 64


def read_lines(path: Path) -> list[str]:
    """The different lines of a text file that are not empty.

    Raises:
        RowsError: it cannot be read, or has fewer than `HELD_OUT` of them.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise RowsError(f"{path}: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}") from None
    texts = list(dict.fromkeys(filter(None, lines)))  # no text is both trained on and measured on
    if len(texts) < HELD_OUT:
        raise RowsError(f"{path}: {len(texts)} different lines of text are too few; at least {HELD_OUT} are needed")
    return texts


@torch.no_grad()
def predicted_labels(
    source: str, texts: Sequence[str], max_length: int, device: str
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
    accelerator = make_accelerator(device)
    model.to(accelerator.device)
    labels: list[Any] = []
    classes = tuple(model.config.id2label[number] for number in range(model.config.num_labels))
    for first in range(0, len(texts), BATCH):
        rows = list(texts[first : first + BATCH])
        given = tokenizer(rows, return_tensors="pt", padding=True, truncation=True, max_length=max_length)
        with accelerator.autocast():
            logits_BC = model(**given.to(accelerator.device)).logits
        if task_type.multi_label:
            labels += [[classes[number] for number in row_C.nonzero().flatten()] for row_C in logits_BC >= 0]
        else:
            labels += [classes[number] for number in logits_BC.argmax(dim=-1)]
    if all(label == labels[0] for label in labels):
        raise RowsError(f"the model {source!r} predicts {labels[0]!r} for all texts: give other texts")
    return labels, classes
