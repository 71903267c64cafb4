"""Layer maps against the published formula and by exhaustion."""

import pytest

from distill.layer_maps import uniform


def test_uniform() -> None:
    assert uniform(6, 12) == (2, 4, 6, 8, 10, 12)  # EfficientBERT and TinyBERT-6
    assert uniform(4, 12) == (3, 6, 9, 12)  # TinyBERT-4
    for student in range(1, 13):
        assert uniform(student, student) == tuple(range(1, student + 1))
        assert uniform(1, student) == (student,)


@pytest.mark.parametrize(("student", "teacher"), [(5, 12), (12, 6), (0, 6), (-1, 6)])
def test_depths_that_do_not_divide(student: int, teacher: int) -> None:
    with pytest.raises(
        ValueError, match=f"{teacher} teacher layers cannot be shared out evenly to {student} student"
    ):
        uniform(student, teacher)
