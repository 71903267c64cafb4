"""Attention of students with fewer heads than their teacher: a head is compared with the same head of the teacher."""

from typing import Any

from distill.encoders.heads import UNKNOWN, Heads, counterparts, heads_of
from distill.objectives.outputs import Outputs

OTHERS = "choose an objective that compares none, such as kd"


def check_heads(student: Any, teacher: Any, layer: int, teacher_layer: int, what: str, remedy: str = OTHERS) -> None:
    """Check that all heads of the student's layer are in the teacher's, and that it has any.

    Args:
        student, teacher: configurations of models with equal `num_attention_heads`.
        what: what compares heads, for the message.

    Raises:
        ValueError: they are not, or it has none.
    """
    own, taught = heads_of(student)[layer - 1], heads_of(teacher)[teacher_layer - 1]
    check_any(own, "student", layer, what, remedy)
    for side, heads, number in (("student", own, layer), ("teacher", taught, teacher_layer)):
        if UNKNOWN in heads:
            raise ValueError(
                f"{what}: layer {number} of the {side} has {len(heads)} attention heads, and its configuration does "
                f"not say by kept_heads which ones: {remedy}"
            )
    if missing := sorted({*own} - {*taught}):
        raise ValueError(
            f"{what}: layer {layer} of the student has head {missing[0]} (counted from 0), and layer {teacher_layer} "
            f"of the teacher does not: {remedy}"
        )


def check_any(heads: Heads, side: str, layer: int, what: str, remedy: str = OTHERS) -> None:
    """Raise ValueError if a layer has no heads."""
    if not heads:
        raise ValueError(f"{what}: layer {layer} of the {side} has no attention head: keep one there, or {remedy}")


def places(student: Outputs, layer: int, taught: Heads) -> list[int] | None:
    """The places of the heads of the student's layer among those of a layer of the teacher's; None if they are all of
    them, in their order.
    """
    return counterparts(student.heads[layer - 1], taught) if student.heads else None
