"""Loss terms, and the objective as their weighted sum."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from distill.objectives.critic import Critic
from distill.objectives.outputs import Batch, Outputs


@dataclass(frozen=True)
class Term:
    """One summand: `loss(student, teacher, batch)` times `weight`.

    `needs` names the student's outputs that the loss reads, `teacher_needs` the teacher's. `teaches` is False for a
    term that only regularises: from such terms alone a student would learn nothing.
    """

    name: str
    weight: float
    needs: frozenset[str]
    loss: Callable[[Outputs, Outputs | None, Batch], Tensor]
    teacher_needs: frozenset[str] = frozenset()
    teaches: bool = True


class Objective(nn.Module):
    """A weighted sum of terms, with the learned projections they use, which no exported model contains.

    A term of weight 0 is left out. `needs` and `teacher_needs` name the outputs that the terms read of student and
    teacher.

    `parameters()` are those of the projections, which learn with the student. The parameters of the `critic` are not
    among them, nor in the state dict: the critic learns against the student, by a separate optimiser. It moves to a
    device with the objective.
    """

    critic: Critic | None

    def __init__(
        self, terms: Iterable[Term], projections: dict[str, nn.Module] | None = None, critic: Critic | None = None
    ) -> None:
        super().__init__()
        self.terms = [term for term in terms if term.weight]
        self.projections = nn.ModuleDict(projections or {})
        # Not registered: an optimiser of the student must not find its parameters here.
        object.__setattr__(self, "critic", critic)
        self.needs = frozenset[str]().union(*(term.needs for term in self.terms))
        self.teacher_needs = frozenset[str]().union(*(term.teacher_needs for term in self.terms))

    def _apply(self, fn: Any, recurse: bool = True) -> "Objective":
        if self.critic is not None:
            self.critic._apply(fn, recurse)
        return super()._apply(fn, recurse)

    @property
    def needs_teacher(self) -> bool:
        """Whether any term compares with a teacher."""
        return bool(self.teacher_needs)

    def forward(self, student: Outputs, teacher: Outputs | None, batch: Batch) -> Tensor:
        """The scalar loss of one batch."""
        total = student.logits.new_zeros((), dtype=student.logits.float().dtype)
        for term in self.terms:
            total = total + term.weight * term.loss(student, teacher, batch)
        return total


def sum_of(values: Iterable[Tensor]) -> Tensor:
    """The sum of tensors, of which there is at least one."""
    total, *others = values
    for value in others:
        total = total + value
    return total


def check_weights(**weights: float) -> None:
    """Raises ValueError for a weight below 0, infinite or NaN."""
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"{name}={weight}: a weight must be a finite number of at least 0")


def check_shares(**shares: float) -> None:
    """Raises ValueError outside 0 to 1."""
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"{name}={share}: must be between 0 and 1")


def check_positive(**numbers: float) -> None:
    """Raises ValueError for a number that is not above 0, or infinite."""
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name}={number}: must be a finite number above 0")
