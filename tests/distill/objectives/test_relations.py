"""MiniLM, MiniLMv2 and MiniMoE, against references of their own."""

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from distill.objectives import minilm, minilmv2, minimoe
from distill.outputs import HIDDEN_STATES, LOGITS, RELATIONS, ROUTINGS
from tests.distill import references
from tests.distill.objectives.cases import Case, array, case, exactly, hard, mapped, reached

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 999)


def sides(given: Case, *parts: int) -> list[list[object]]:
    return [[array(side.relations[part]) for part in parts] for side in (given.student, given.teacher)]


@settings(max_examples=25, deadline=None)
@drawn(LENGTHS, st.sampled_from([1, 2, 3]), st.sampled_from([12, 6]), SEEDS)
def test_minilm(lengths: tuple[int, ...], heads: int, width: int, seed: int) -> None:
    shape = {"lengths": lengths, "widths": (width, 12), "heads": (heads, heads), "depths": (3, 4), "seed": seed}
    given = case(**shape)
    objective = minilm(*given.configs, attention=0.5, values=2.0)
    expected = 0.5 * references.relations(*sides(given, 0, 1), lengths, heads)
    expected += 2 * references.relations(*sides(given, 2), lengths, heads)
    assert objective(*given.given).item() == exactly(expected)
    assert objective(*case(**shape, extra=3).given).item() == exactly(expected)
    assert objective.needs == objective.teacher_needs == {RELATIONS}
    assert not list(objective.parameters())


@settings(max_examples=25, deadline=None)
@drawn(LENGTHS, st.sampled_from([1, 2, 6]), st.sampled_from([12, 6]), SEEDS)
def test_minilmv2(lengths: tuple[int, ...], relation_heads: int, width: int, seed: int) -> None:
    shape = {"lengths": lengths, "widths": (width, 12), "heads": (1, 2), "depths": (3, 4), "seed": seed}
    given = case(**shape)
    objective = minilmv2(*given.configs, relation=0.5, relation_heads=relation_heads)
    expected = 0.5 * sum(references.relations(*sides(given, part), lengths, relation_heads) for part in range(3))
    assert objective(*given.given).item() == exactly(expected)
    assert objective(*case(**shape, extra=3).given).item() == exactly(expected)
    assert objective.needs == objective.teacher_needs == {RELATIONS}
    assert not list(objective.parameters())


@settings(max_examples=25, deadline=None)
@drawn(LENGTHS, st.sampled_from([1, 2, 6]), st.sampled_from([12, 6]), SEEDS)
def test_minimoe(lengths: tuple[int, ...], relation_heads: int, width: int, seed: int) -> None:
    shape = {"lengths": lengths, "widths": (width, 12), "depths": (3, 4), "seed": seed}
    given = case(**shape)
    objective = minimoe(*given.configs, relation=0.5, relation_heads=relation_heads)
    last = given.student.hidden_states[-1]
    own = [mapped(last, objective.projections[name]) for name in ("query", "key", "value")]
    teacher = [array(part) for part in given.teacher.relations]
    pairs = zip(own, teacher, strict=True)
    expected = 0.5 * sum(references.relations([a], [b], lengths, relation_heads) for a, b in pairs) / 3
    assert objective(*given.given).item() == exactly(expected)
    assert objective(*case(**shape, extra=3).given).item() == exactly(expected)


def test_what_learns() -> None:
    for make, chosen, expected in (
        (minilm, {}, {"relations.0", "relations.1", "relations.2"}),
        (minilm, {"attention": 0}, {"relations.2"}),
        (minilm, {"values": 0}, {"relations.0", "relations.1"}),
        (minilmv2, {"relation_heads": 3}, {"relations.0", "relations.1", "relations.2"}),
        (minimoe, {"relation_heads": 3}, {"hidden_states.2"}),
    ):
        given = case()
        objective = make(*given.configs, **chosen)
        objective(*given.given).backward()
        assert reached(given) == expected
        assert all(parameter.grad is not None for parameter in objective.parameters())


def test_labels_and_balance() -> None:
    given = case(experts=3)
    shares = [references.balance(array(p).tolist(), chosen.tolist(), 3) for p, chosen in given.student.routings]
    for make, others in ((minilm, {"attention": 0, "values": 0}), (minilmv2, {"relation": 0, "relation_heads": 2})):
        objective = make(*given.configs, labels=0.5, balance=0.1, **others)
        assert (objective.needs, objective.teacher_needs) == ({LOGITS, ROUTINGS}, frozenset())
        expected = 0.5 * hard(given) + 0.1 * sum(shares) / 2
        assert objective(given.student, None, given.batch).item() == exactly(expected)
    assert minimoe(*given.configs, relation_heads=2).needs == {HIDDEN_STATES, ROUTINGS}


def test_head_counts_that_differ() -> None:
    with pytest.raises(
        ValueError, match=r"^minilm needs equal head counts: student 3, teacher 2; give the student 2 heads, or take "
    ):
        minilm(*case(heads=(3, 2)).configs)


@pytest.mark.parametrize("make", [minilmv2, minimoe])
def test_relation_heads_that_do_not_divide(make: object) -> None:
    configs = case(widths=(18, 12)).configs
    for heads in (48, 4, 0, -6):
        message = f"relation_heads={heads} must divide the student's width 18 and the teacher's 12"
        with pytest.raises(ValueError, match=f"^{message}: choose one of 1, 2, 3, 6$"):
            make(*configs, relation_heads=heads)
    with pytest.raises(ValueError, match=r"^relation=-1: a weight must be a finite number of at least 0$"):
        make(*configs, relation=-1)
