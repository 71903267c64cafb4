"""Loss terms, and the objective as their weighted sum."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from distill.objectives.critic import Critic
from distill.objectives.outputs import Batch, Outputs


@dataclass(frozen=True)
class Term:
    """A loss term of an objective: `weight` times `loss(student, teacher, batch)`.

    `needs` names the student's outputs that the loss reads, `teacher_needs` those of the teacher. If the latter are
    empty, the teacher's outputs may be None. `teaches` is False for a pure regularizer, from which alone a student
    would learn nothing. A loss on attention that compares heads with their counterparts (`Outputs.heads`) says so by
    `by_heads`; with any other, students whose layers do not have all heads in the teacher's order are refused.

    Raises:
        ValueError: the weight is negative, infinite or NaN.
    """

    name: str
    weight: float
    needs: frozenset[str]
    loss: Callable[[Outputs, Any, Batch], Tensor]
    teacher_needs: frozenset[str] = frozenset()
    teaches: bool = True
    by_heads: bool = False

    def __post_init__(self) -> None:
        check_weights(**{self.name: self.weight})


class Objective(nn.Module):
    """A weighted sum of loss terms, with the learned projections that they use. Exported models do not contain these.

    Terms of weight 0 are dropped. `needs` and `teacher_needs` name the outputs of student and teacher that the terms
    read.

    `parameters()` are those of the projections, which are trained with the student. They and the state dict do not
    include the parameters of the `critic`, which is trained against the student by a separate optimizer. The critic
    moves to a device together with the objective.
    """

    critic: Critic | None

    def __init__(
        self, terms: Iterable[Term], projections: dict[str, nn.Module] | None = None, critic: Critic | None = None
    ) -> None:
        super().__init__()
        self.terms = [term for term in terms if term.weight]
        self.projections = nn.ModuleDict(projections or {})
        # Not registered as a submodule, so that the student's optimizer does not get its parameters.
        object.__setattr__(self, "critic", critic)
        self.needs = frozenset[str]().union(*(term.needs for term in self.terms))
        self.teacher_needs = frozenset[str]().union(*(term.teacher_needs for term in self.terms))

    def _apply(self, fn: Any, recurse: bool = True) -> "Objective":
        if self.critic is not None:
            self.critic._apply(fn, recurse)
        return super()._apply(fn, recurse)

    @property
    def needs_teacher(self) -> bool:
        """Whether any term reads outputs of a teacher."""
        return bool(self.teacher_needs)

    def forward(self, student: Outputs, teacher: Outputs | None, batch: Batch) -> Tensor:
        """The scalar loss of one batch."""
        total = student.logits.new_zeros((), dtype=student.logits.float().dtype)
        for term in self.terms:
            total = total + term.weight * term.loss(student, teacher, batch)
        return total


def sum_of(values: Iterable[Tensor]) -> Tensor:
    """The sum of at least one tensor."""
    total, *others = values
    for value in others:
        total = total + value
    return total


def check_weights(**weights: float) -> None:
    """Raise ValueError for a weight that is negative, infinite or NaN."""
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"{name}={weight}: a weight must be a finite number of at least 0")


def check_fractions(**fractions: float) -> None:
    """Raise ValueError for a number outside [0, 1]."""
    for name, fraction in fractions.items():
        if not 0 <= fraction <= 1:
            raise ValueError(f"{name}={fraction}: must be between 0 and 1")


def check_positive(**numbers: float) -> None:
    """Raise ValueError for a number that is not positive, or infinite."""
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name}={number}: must be a finite number above 0")


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Raise ValueError for a value that is not among the known ones."""
    if value not in known:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(known)}")
