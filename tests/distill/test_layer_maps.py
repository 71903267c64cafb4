"""Layer maps against the published formula and by exhaustion."""

from itertools import pairwise

import pytest

from distill.layer_maps import pairs, uniform


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


def test_pairs() -> None:
    assert pairs(6, 12, "alternate") == ((0, 0), (2, 4), (4, 8), (6, 12))
    assert pairs(3, 3, "alternate") == ((1, 1), (3, 3))
    assert pairs(6, 12, "last") == ((6, 12),)
    for depth in range(1, 13):
        every = pairs(depth, 2 * depth)
        assert every == tuple((layer, 2 * layer) for layer in range(depth + 1))
        alternate = pairs(depth, 2 * depth, "alternate")
        assert alternate[-1] == every[-1]
        assert len(alternate) == depth // 2 + 1
        assert {b[0] - a[0] for a, b in pairwise(alternate)} <= {2}


def test_pairs_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="unknown choice of layers 'first': choose one of all, alternate, last"):
        pairs(6, 12, "first")
    with pytest.raises(ValueError, match="12 teacher layers cannot be shared out evenly to 5 student layers"):
        pairs(5, 12, "last")
