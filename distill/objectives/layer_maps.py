"""Mappings from student layers to the teacher layers that they learn from.

Layers are counted from 1; state 0 is the embedding output. Except for `patient(..., "last")`, the maps raise ValueError
if the teacher's layers cannot be divided into as many equal groups as the student has layers.
"""

from itertools import pairwise

from distill.objectives.base import check_choice

Pairs = tuple[tuple[int, int], ...]


def uniform(student_layers: int, teacher_layers: int) -> tuple[int, ...]:
    """The last layer of each of `student_layers` equal groups of teacher layers (TinyBERT, EfficientBERT)."""
    return tuple(group[-1] for group in groups(student_layers, teacher_layers))


def groups(student_layers: int, teacher_layers: int) -> tuple[tuple[int, ...], ...]:
    """The teacher's layers divided into `student_layers` equal groups; MicroBERT learns from the average of each."""
    if student_layers < 1 or teacher_layers % student_layers:
        depths = [str(depth) for depth in range(1, teacher_layers + 1) if teacher_layers % depth == 0]
        raise ValueError(
            f"{teacher_layers} teacher layers cannot be shared out evenly to {student_layers} student "
            f"layers: use a student whose depth is one of {', '.join(depths)}"
        )
    size = teacher_layers // student_layers
    return tuple(tuple(range(end - size + 1, end + 1)) for end in range(size, teacher_layers + 1, size))


def overlapping_groups(student_layers: int, teacher_layers: int) -> tuple[tuple[int, ...], ...]:
    """As `groups`, but every group after the first begins with the last layer of the group before: layers 1-3, 3-6, 6-9
    and 9-12 for 4 student layers (MicroBERT, section 3.2).
    """
    disjoint = groups(student_layers, teacher_layers)
    return (disjoint[0], *((before[-1], *group) for before, group in pairwise(disjoint)))


def groups_of_states(student_layers: int, teacher_layers: int) -> tuple[tuple[int, ...], ...]:
    """For each state of the student, its embedding output first, the teacher's states of a group: 0-2, 3-5, 6-8, 9-11
    and 12 for 4 student layers (MicroBERT's released code).
    """
    disjoint = groups(student_layers, teacher_layers)
    return (*(tuple(layer - 1 for layer in group) for group in disjoint), (teacher_layers,))


def pairs(student_layers: int, teacher_layers: int, choice: str = "all") -> Pairs:
    """Pairs (student state, teacher state) of the uniform map.

    Args:
        choice: "all" states; "alternate", every second one, counted back from the last, so that the embedding output
            is among them where the student's depth is even; or the "last" one. MoEBERT's figure 3b compares the three.
    """
    all_pairs = tuple(enumerate((0, *uniform(student_layers, teacher_layers))))
    choices = {"all": all_pairs, "alternate": all_pairs[student_layers % 2 :: 2], "last": all_pairs[-1:]}
    check_choice("layers", choice, choices)
    return choices[choice]


def patient(student_layers: int, teacher_layers: int, choice: str = "skip") -> Pairs:
    """Pairs (student layer, teacher layer) of Patient Knowledge Distillation, for all of the student's layers but the
    last.

    Args:
        choice: "skip" for the uniform map, or "last" for the teacher's layers just before its last one.

    Raises:
        ValueError: the student has a single layer, or for "last" more layers than the teacher.
    """
    check_choice("layers", choice, ("skip", "last"))
    if student_layers < 2:
        raise ValueError(f"a student of {student_layers} layers has none but its last: use one of at least 2 layers")
    if choice == "skip":
        return tuple(enumerate(uniform(student_layers, teacher_layers)[:-1], start=1))
    if teacher_layers < student_layers:
        raise ValueError(
            f"a teacher of {teacher_layers} layers has no {student_layers - 1} before its last: "
            f"use a student of at most {teacher_layers} layers"
        )
    return tuple((layer, teacher_layers - student_layers + layer) for layer in range(1, student_layers))
