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
