"""Counting of sizes against brute force and known numbers."""

import itertools
from collections.abc import Sequence
from math import comb
from operator import truediv

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from search_spaces import counting
from search_spaces.counting import Bounds, Cost, count_each, count_within, invert


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=5),
    st.integers(-5, 90),
    st.integers(-5, 90),
)
def test_count_within_by_brute_force(costs: list[list[int]], low: int, high: int) -> None:
    expected = sum(low <= sum(chosen) <= high for chosen in itertools.product(*costs))
    assert count_within([[(cost,) for cost in layer] for layer in costs], Bounds(low, (high,))) == expected


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 20),
    st.tuples(st.integers(0, 30), st.integers(0, 15)),
)
def test_count_within_two_budgets(costs: list[list[tuple[int, int]]], low: int, high: tuple[int, int]) -> None:
    sums = [(sum(a for a, _ in chosen), sum(b for _, b in chosen)) for chosen in itertools.product(*costs)]
    expected = sum(low <= first <= high[0] and second <= high[1] for first, second in sums)
    assert count_within(costs, Bounds(low, high)) == expected


def test_the_released_box() -> None:
    # The released search decides by a rounded table, in hundreds: 16 sizes of a layer, and the rest.
    table = [5854, 2935, 1962, 1476, 11707, 5870, 3924, 2951, 17561, 8805, 5886, 4427, 23414, 11740, 7848, 5902]
    rest = 48_088 + 6 * 11_696
    sizes = [[(cost,) for cost in table]] * 6
    assert count_within(sizes, Bounds(150_000 - rest, (160_000 - rest,))) == 4_480_424
    assert count_within(sizes, Bounds(0, (10**9,))) == 16**6


def test_counts_of_several_budgets_beyond_a_machines_integers() -> None:
    layers = [[(1, 1), (2, 3)]] * 70
    assert count_within(layers, Bounds(0, (140, 210))) == 2**70
    # With the second option in j layers the sums are 70 + j and 70 + 2 j.
    assert count_within(layers, Bounds(80, (120, 130))) == sum(comb(70, j) for j in range(10, 31))
    assert count_within(layers, Bounds(141, (150, 210))) == count_within(layers, Bounds(0, (140, 69))) == 0


COST = st.integers(0, 12)


@st.composite
def with_budgets(draw: st.DrawFn) -> tuple[list[tuple[Cost, ...]], Cost]:
    """The costs of two to four layers and one to three upper bounds, all of which are whole steps of the grid."""
    budgets = draw(st.integers(1, 3))
    layer = st.lists(st.tuples(*[COST] * budgets), min_size=1, max_size=4).map(tuple)
    return draw(st.lists(layer, min_size=2, max_size=4)), draw(st.tuples(*[st.integers(0, 40)] * budgets))


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sums are counted on the grid."""
    monkeypatch.setattr(counting, "MANY", 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(with_budgets())
def test_the_grid_is_exact_where_its_steps_are_one(grid: None, given: tuple[list[tuple[Cost, ...]], Cost]) -> None:
    """And it counts 0 exactly where the cheapest options of the others do not complete an option."""
    (options, *rest), high = given
    cheapest = [min(layer, key=lambda cost: sum(map(truediv, cost, [max(1, most) for most in high]))) for layer in rest]

    def is_within(chosen: Sequence[Cost]) -> bool:
        return all(sum(parts) <= most for parts, most in zip(zip(*chosen, strict=True), high, strict=True))

    expected = [
        is_within([option, *cheapest]) * sum(is_within([option, *others]) for others in itertools.product(*rest))
        for option in options
    ]
    assert count_each(options, tuple(sorted(rest)), Bounds(0, high), high) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(with_budgets(), st.lists(st.floats(0, 1), min_size=4, max_size=4))
# The cheapest options of both are not within the bounds, but other ones are.
@example(([((5, 5), (9, 9)), ((0, 6), (4, 4))], (9, 10)), [0.5] * 4)
def test_draws_on_the_grid_stay_within_the_bounds(
    grid: None, given: tuple[list[tuple[Cost, ...]], Cost], positions: list[float]
) -> None:
    """Also with few steps, if anything is within them."""
    (layers, high), steps = given, counting.STEPS
    for few in (steps, dict.fromkeys(steps, 3)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(counting, "STEPS", few)
            counting._grid.cache_clear()
            bounds = Bounds(0, high)
            if not count_within(layers, bounds):
                continue
            for place, row in enumerate(layers):
                ways = count_each(row, tuple(sorted(layers[place + 1 :])), bounds, high)
                bounds = bounds.without(row[invert(ways, positions[place])])
            assert min(bounds.high) >= 0
    counting._grid.cache_clear()


@pytest.mark.parametrize("budgets", [1, 2, 3])
def test_the_grid_counts_nearly_all_where_its_steps_are_long(budgets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(budgets)
    layers = [tuple(map(tuple, rng.integers(1, 10**6, (15, budgets)).tolist())) for _ in range(4)]
    for most in (1_700_000, 2_000_000, 2_600_000):
        bounds = Bounds(0, (most,) * budgets)
        exact = count_within(layers, bounds)
        with monkeypatch.context() as patch:
            patch.setattr(counting, "MANY", 10)
            assert counting.is_on_grid(layers, bounds.high)
            counted = count_within(layers, bounds)
        assert exact > 100
        assert counted == pytest.approx(exact, rel=0.1)


def test_a_row_without_many_options_is_counted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the sums of the rows after a layer matter."""
    many, few = tuple((cost,) for cost in range(1, 21)), ((10**6,), (2 * 10**6 + 1,))
    monkeypatch.setattr(counting, "MANY", 10)
    monkeypatch.setitem(counting.STEPS, 1, 2)
    high = (2 * 10**6 + 11,)
    assert count_each(many, (few,), Bounds(0, high), high) == [2] * 10 + [1] * 10


def test_sums_that_are_too_many_are_counted_on_the_grid() -> None:
    """Of twelve layers with 40 options of two unrelated costs all sums would take more memory than there is."""
    rng = np.random.default_rng(0)
    row = tuple(map(tuple, rng.integers(10**5, 10**6, (40, 2)).tolist()))
    high = (6 * 10**6, 6 * 10**6)
    assert counting.is_on_grid([row] * 12, high) and not counting.is_on_grid([row] * 4, high)
    # Sums of twelve draws are nearly normal.
    counted, drawn = (
        count_within([row] * 12, Bounds(0, high)),
        np.array(row)[rng.integers(40, size=(40_000, 12))].sum(axis=1),
    )
    assert counted / 40**12 == pytest.approx((drawn <= high).all(axis=1).mean(), rel=0.1)
