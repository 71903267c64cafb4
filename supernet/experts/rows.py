"""Loading of the rows on which mixtures are trained and evaluated, with the classes of the checkpoint."""

import argparse
from dataclasses import dataclass

from transformers import AutoConfig, PreTrainedTokenizerBase

import supernet.build  # noqa: F401  (registers our own models with transformers)
from distill.tasks.encoding import Encoded
from distill.tasks.readers import load_task
from distill.tasks.readers.tables import read_rows
from distill.tasks.types import CLASSIFICATION, encode
from distill.training.teacher import TeacherError, locate
from supernet.experts import ExpertsError


@dataclass(frozen=True)
class Rows:
    """Encoded training and dev rows of one task, and the names of its classes."""

    train: Encoded
    dev: Encoded
    labels: tuple[str, ...]


def checkpoint_classes(source: str) -> tuple[str, ...] | int:
    """The names of a checkpoint's classes, or their number if they have no names.

    Raises:
        distill.training.teacher.TeacherError: there is no checkpoint.
    """
    try:
        config = AutoConfig.from_pretrained(locate(source))
    except (OSError, ValueError) as error:
        raise TeacherError(f"no checkpoint at {source!r}: {str(error).strip().splitlines()[0]}") from None
    names = tuple(config.id2label[number] for number in range(config.num_labels))
    unnamed = tuple(f"LABEL_{number}" for number in range(config.num_labels))
    return config.num_labels if names == unnamed else names


def load_rows(options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, classes: tuple[str, ...] | int) -> Rows:
    """The rows of the task, or of the user's files.

    Args:
        classes: the checkpoint's classes, as returned by `checkpoint_classes`.

    Raises:
        ExpertsError, distill.tasks.task.TaskError: there is no such task or file, the task is not a classification, or
            its classes are not those of the checkpoint.
    """
    if options.task is not None:
        data = load_task(options.task, options.data)
        if data.task.kind != CLASSIFICATION:
            raise ExpertsError(f"--task {options.task}: must be a {CLASSIFICATION}, not a {data.task.kind}")
        train, dev, labels = data.train, data.dev, data.task.labels
    else:
        names = None if isinstance(classes, int) else classes
        train, labels = read_rows(options.train, options.text, options.label, options.pair, names)
        dev, _ = read_rows(options.dev, options.text, options.label, options.pair, labels)
    if labels != classes and len(labels) != classes:
        actual = classes if isinstance(classes, int) else ", ".join(classes)
        expected = ", ".join(labels)
        raise ExpertsError(
            f"{options.checkpoint}: the classes of the checkpoint are {actual}, but those of the rows are {expected}"
        )
    try:
        encoded = [encode(tokenizer, split, options.max_length, kind=CLASSIFICATION) for split in (train, dev)]
        return Rows(encoded[0], encoded[1], labels)
    except ValueError as error:
        raise ExpertsError(f"--max-length: {error}") from None
