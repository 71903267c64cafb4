"""The objective of sentence encoders: the teacher's vectors, their similarities, and the states of all layers."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from distill.objectives import layer_maps, losses, terms
from distill.objectives.base import Objective, Term, check_positive, check_weights
from distill.objectives.outputs import LOGITS, Batch, Outputs


def embeddings(
    student: Any,
    teacher: Any,
    *,
    vector: float = 1.0,
    similarity: float = 0.0,
    hidden: float = 1.0,
    temperature: float = 0.05,
    balance: float = 0.0,
) -> Objective:
    """vector L_vector + similarity L_similarity + hidden L_hidden, from text alone.

    L_vector is the mean of |s - t|^2 over the sentences of a batch, over the mean of |t|^2, where s and t, (B, D), are
    the vectors of student and teacher. For vectors of length 1 it is 2 (1 - cos(s, t)). L_similarity is the mean over
    sentences of KL(softmax(t t' / T) || softmax(s s' / T)), in which t' and s' are the vectors of the other sentences
    of the batch, all with length 1. L_hidden is the sum over layers of the mean squared error of the hidden states, as
    in `efficientbert`.

    Args:
        vector, similarity, hidden: weights.
        temperature: T.

    Raises:
        ValueError: the student's depth does not divide the teacher's.
    """
    check_positive(temperature=temperature)
    check_weights(hidden=hidden)
    layers = layer_maps.pairs(student.num_hidden_layers, teacher.num_hidden_layers)[1:] if hidden else []
    maps = terms.transforms(student, teacher, [m for m, _ in layers])
    logits = frozenset({LOGITS})
    return Objective(
        [
            Term("vector", vector, logits, _distance, logits),
            Term("similarity", similarity, logits, partial(_divergence, temperature=temperature), logits),
            terms.hidden("hidden", hidden, layers, maps),
            terms.balance(balance),
        ],
        maps,
    )


def _vectors(student: Outputs, teacher: Outputs) -> tuple[Tensor, Tensor]:
    losses.check_logits(student.logits, teacher.logits)
    return student.logits.float().flatten(1), teacher.logits.float().flatten(1)


def _distance(student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
    student_BD, teacher_BD = _vectors(student, teacher)
    return (student_BD - teacher_BD).square().sum() / teacher_BD.square().sum().clamp(min=1e-12)


def _divergence(student: Outputs, teacher: Outputs, batch: Batch, temperature: float) -> Tensor:
    if len(student.logits) < 2:  # there is no other sentence
        return student.logits.new_zeros((), dtype=torch.float32)
    student_BB, teacher_BB = (_similarities(vectors) / temperature for vectors in _vectors(student, teacher))
    return losses.soft_kl(student_BB, teacher_BB)


def _similarities(vectors_BD: Tensor) -> Tensor:
    """The cosines of each vector with the others, (B, B - 1)."""
    unit_BD = torch.nn.functional.normalize(vectors_BD, dim=-1)
    others_BB = ~torch.eye(len(unit_BD), dtype=torch.bool, device=unit_BD.device)
    return (unit_BD @ unit_BD.T)[others_BB].view(len(unit_BD), -1)
