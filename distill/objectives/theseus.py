"""BERT-of-Theseus (Xu et al., 2020): the student's layers are trained while they replace layers of the teacher."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transformers import PreTrainedModel

from distill.objectives.base import Objective, check_fractions
from distill.objectives.kd import none
from distill.objectives.outputs import Batch
from distill.objectives.replacement import Replacement, check_replaceable, replacing
from distill.objectives.spec import ObjectiveSpec, Settings


def theseus(student: Any, teacher: Any, *, balance: float = 0.0, start: float = 0.3, until: float = 0.75) -> Objective:
    """BERT-of-Theseus (Xu et al., 2020). The only loss term is that of the labels, as in `none`.

    Distillation happens not by a loss term but by replacing the teacher's layers by the student's during the training:
    see `distill.objectives.replacement`.

    Args:
        start: probability in the first step that a layer of the student replaces its group of teacher layers.
        until: fraction of the steps after which this probability, which rises linearly, reaches 1.

    Raises:
        ValueError: the student's layers cannot replace the teacher's.
    """
    check_fractions(start=start, until=until)
    check_replaceable(student, teacher)
    return none(student, teacher, balance=balance)


@contextlib.contextmanager
def _replaced_layers(
    student: PreTrainedModel, teacher: PreTrainedModel, *, settings: Settings, steps: int, seed: int
) -> Iterator[Callable[[Iterable[Batch]], Iterable[Batch]]]:
    start, until = float(settings["start"]), float(settings["until"])
    replacement = Replacement(student.config.num_hidden_layers, steps, seed, start, until)
    with replacing(student, teacher, replacement):
        yield replacement.drawn


THESEUS = ObjectiveSpec(theseus, training_context=_replaced_layers)
