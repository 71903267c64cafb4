"""Counting of sizes against brute force and known numbers."""

import itertools
from math import comb

from hypothesis import given
from hypothesis import strategies as st

from search_spaces.counting import Bounds, count_within


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
    table = [
        5854,
        2935,
        1962,
        1476,
        11707,
        5870,
        3924,
        2951,
        17561,
        8805,
        5886,
        4427,
        23414,
        11740,
        7848,
        5902,
    ]
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
