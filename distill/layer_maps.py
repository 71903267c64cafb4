"""Which teacher layer each student layer learns from."""


def uniform(student_layers: int, teacher_layers: int) -> tuple[int, ...]:
    """The last of each of `student_layers` equal groups of teacher layers, counted from 1.

    The map of TinyBERT and EfficientBERT.

    Raises:
        ValueError: the teacher's layers cannot be cut into that many equal groups.
    """
    if student_layers < 1 or teacher_layers % student_layers:
        raise ValueError(
            f"{teacher_layers} teacher layers cannot be shared out evenly to {student_layers} student "
            "layers: use a student whose depth divides the teacher's"
        )
    group = teacher_layers // student_layers
    return tuple(group * (layer + 1) for layer in range(student_layers))


def pairs(student_layers: int, teacher_layers: int, choice: str = "all") -> tuple[tuple[int, int], ...]:
    """Pairs (student state, teacher state) of the uniform map; state 0 is the embedding output.

    Args:
        choice: "all" states; "alternate", every second one, counted back from the last, so that the embedding output
            is among them where the student's depth is even; or the "last" one. MoEBERT's figure 3b compares the three.

    Raises:
        ValueError: as `uniform`, or the choice is unknown.
    """
    every = tuple(enumerate((0, *uniform(student_layers, teacher_layers))))
    choices = {"all": every, "alternate": every[student_layers % 2 :: 2], "last": every[-1:]}
    if choice not in choices:
        raise ValueError(f"unknown choice of layers {choice!r}: choose one of {', '.join(choices)}")
    return choices[choice]
