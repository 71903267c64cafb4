"""Layer maps against the published formula and by exhaustion."""

from itertools import pairwise

import pytest

from distill.objectives.layer_maps import groups, groups_of_states, overlapping_groups, pairs, patient, uniform


def test_uniform() -> None:
    assert uniform(6, 12) == (2, 4, 6, 8, 10, 12)  # EfficientBERT and TinyBERT-6
    assert uniform(4, 12) == (3, 6, 9, 12)  # TinyBERT-4
    for student in range(1, 13):
        assert uniform(student, student) == tuple(range(1, student + 1))
        assert uniform(1, student) == (student,)


@pytest.mark.parametrize(("student", "teacher"), [(5, 12), (12, 6), (0, 6), (-1, 6)])
def test_depths_that_do_not_divide(student: int, teacher: int) -> None:
    depths = ", ".join(str(depth) for depth in (1, 2, 3, 4, 6, 12) if teacher % depth == 0)
    message = f"^{teacher} teacher layers cannot be shared out evenly to {student} student layers: "
    evenly = (uniform, groups, overlapping_groups, pairs)
    for function in (*evenly, patient) if student > 1 else evenly:
        with pytest.raises(ValueError, match=f"{message}use a student whose depth is one of {depths}$"):
            function(student, teacher)


def test_groups() -> None:
    assert groups(4, 12) == ((1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12))  # MicroBERT
    for student in range(1, 13):
        for size in range(1, 4):
            found = groups(student, size * student)
            assert [layer for group in found for layer in group] == list(range(1, size * student + 1))
            assert {len(group) for group in found} == {size}


def test_overlapping_groups() -> None:
    assert overlapping_groups(4, 12) == ((1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9), (9, 10, 11, 12))  # MicroBERT
    assert groups_of_states(4, 12) == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11), (12,))  # its released code
    for student in range(1, 13):
        for size in range(1, 4):
            found = overlapping_groups(student, size * student)
            expected = [range(max(1, size * m), size * (m + 1) + 1) for m in range(student)]
            assert found == tuple(map(tuple, expected))


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


def test_patient() -> None:
    assert patient(6, 12) == ((1, 2), (2, 4), (3, 6), (4, 8), (5, 10))  # PKD-Skip
    assert patient(6, 12, "last") == ((1, 7), (2, 8), (3, 9), (4, 10), (5, 11))  # PKD-Last
    assert patient(3, 12) == ((1, 4), (2, 8))
    assert patient(3, 12, "last") == ((1, 10), (2, 11))
    assert patient(5, 12, "last")[0] == (1, 8)
    assert patient(4, 4) == patient(4, 4, "last") == ((1, 1), (2, 2), (3, 3))


def test_pairs_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="layers='first': choose one of all, alternate, last"):
        pairs(6, 12, "first")
    for choice in ("skip", "last"):
        with pytest.raises(ValueError, match=r"^a student of 1 layers has none but its last: use one of at least 2 "):
            patient(1, 12, choice)
    with pytest.raises(ValueError, match=r"^a teacher of 4 layers has no 5 before its last: use a student of at most "):
        patient(6, 4, "last")
    with pytest.raises(ValueError, match="layers='all': choose one of skip, last"):
        patient(6, 12, "all")
