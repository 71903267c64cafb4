"""Loss terms that several objectives share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from distill.objectives import losses
from distill.objectives.base import Term, sum_of
from distill.objectives.outputs import HIDDEN_STATES, LOGITS, ROUTINGS, Batch, Outputs, of_layers
from distill.tasks.types import get_task_type


def labels(weight: float, name: str = "labels") -> Term:
    """The loss with the labels: cross-entropy, or for a regression the mean square error."""

    def loss(student: Outputs, _teacher: Any, batch: Batch) -> Tensor:
        return get_task_type(student.task_type).loss(student.logits, batch, "mean")

    return Term(name, weight, frozenset({LOGITS}), loss)


def soft_labels(
    name: str,
    weight: float,
    compare: Callable[[Tensor, Tensor], Tensor],
    every_token: bool = False,
    mean_over_classes: bool = False,
) -> Term:
    """The loss with the teacher's predictions.

    This is `compare(student (N, C), teacher (N, C))`, applied to the logits of all distributions that the task predicts
    (see `TaskType.distributions`), or for a regression the mean square error between the predictions.

    Args:
        every_token: compare the predictions of all tokens except padding, not just those of labeled tokens.
        mean_over_classes: as in the released code of several papers, divide the loss by the number of classes.
    """

    def loss(student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
        losses.check_logits(student.logits, teacher.logits)
        distributions = get_task_type(student.task_type).distributions
        if distributions is None:
            return F.mse_loss(student.logits.float(), teacher.logits.float())
        if every_token:
            batch = {"attention_mask": batch["attention_mask"]}
        student_NC, teacher_NC = (distributions(side.logits, batch) for side in (student, teacher))
        value = compare(student_NC, teacher_NC)
        return value / student_NC.shape[1] if mean_over_classes else value

    return Term(name, weight, frozenset({LOGITS}), loss, frozenset({LOGITS}))


def with_answers(term: Term, positions: Callable[[Tensor], Tensor], factor: float = 1.0) -> Term:
    """A term on predictions with other choices of where an answer starts and ends, as in released code; for other task
    types it is the same.

    Args:
        positions: attention mask (B, T) -> mask (B, T) of the choices, instead of all tokens except padding.
        factor: multiplies the term on question answering.
    """

    def loss(student: Outputs, teacher: Any, batch: Batch) -> Tensor:
        if not get_task_type(student.task_type).of_positions:
            return term.loss(student, teacher, batch)
        mask_BT = positions(batch["attention_mask"])
        return factor * term.loss(student, teacher, {**batch, "attention_mask": mask_BT})

    return replace(term, loss=loss)


def balance(weight: float) -> Term:
    """The load-balancing loss of the student's experts, mean over the gated routers; 0 if there are none."""

    def loss(student: Outputs, _teacher: Any, _batch: Batch) -> Tensor:
        if not student.routings:
            return student.logits.new_zeros(())
        return sum_of(losses.balance(*routing) for routing in student.routings) / len(student.routings)

    return Term("balance", weight, frozenset({ROUTINGS}), loss, teaches=False)


def transforms(
    student: Any, teacher: Any, states: Iterable[int], shared: bool = False, always: bool = False
) -> dict[str, nn.Module]:
    """Learned linear maps from the student's width to the teacher's for these states of the student: one for the
    embedding output, which is state 0, and one for all layers, or a single `shared` one. Unless `always`, there are
    none if the widths agree.
    """
    if student.hidden_size == teacher.hidden_size and not always:
        return {}
    names = dict.fromkeys("hidden" if state or shared else "embedding" for state in states)
    return {name: nn.Linear(student.hidden_size, teacher.hidden_size) for name in names}


def transformed(student: Outputs, state: int, maps: dict[str, nn.Module]) -> Tensor:
    """A state of the student, projected to the teacher's width by its map from `transforms`."""
    if not maps:
        return student.hidden_states[state]
    return maps["embedding" if state == 0 and "embedding" in maps else "hidden"](student.hidden_states[state])


def hidden(
    name: str, weight: float, pairs: Sequence[tuple[int, int]], maps: dict[str, nn.Module], padding: bool = False
) -> Term:
    """The sum of the mean square errors of pairs (student state, teacher state); `padding` includes padding tokens."""

    def loss(s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        mask_BT = torch.ones_like(batch["attention_mask"]) if padding else batch["attention_mask"]
        return sum_of(losses.hidden_mse(transformed(s, m, maps), t.hidden_states[n], mask_BT) for m, n in pairs)

    return Term(name, weight, frozenset({HIDDEN_STATES}), loss, of_layers(HIDDEN_STATES, (n for _, n in pairs)))
