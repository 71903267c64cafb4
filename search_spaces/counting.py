"""How many ways there are to choose one option for every layer so that the summed costs keep to a box.

A cost is a tuple of whole numbers, one for each budget. A box bounds the first from both sides and the others
from above. Dynamic programming over the layers counts exactly, so that a draw can be uniform without rejection.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

Cost = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """Sums whose first entry is at least `low`, and of which no entry exceeds its partner in `high`."""

    low: int
    high: Cost

    def __contains__(self, total: Cost) -> bool:
        return self.low <= total[0] and all(spent <= most for spent, most in zip(total, self.high, strict=True))

    def less(self, cost: Cost) -> "Box":
        """What remains of the box once `cost` is spent."""
        return Box(self.low - cost[0], tuple(most - spent for most, spent in zip(self.high, cost, strict=True)))


def add(*costs: Cost) -> Cost:
    """The sum, entry by entry."""
    return tuple(map(sum, zip(*costs, strict=True)))


def count_within(costs: Sequence[Sequence[Cost]], box: Box) -> int:
    """In how many ways one cost of every layer can be chosen so that their sum lies in the box."""
    first, *rest = sorted(tuple(layer) for layer in costs)
    return sum(count_rest(tuple(rest), box.less(cost), box.high) for cost in first)


def count_rest(costs: tuple[tuple[Cost, ...], ...], box: Box, cap: Cost) -> int:
    """As `count_within` for layers in sorted order; `cap` is the whole box's upper end, which the sums are kept to."""
    if box.low > box.high[0] or min(box.high) < 0:
        return 0
    if len(cap) > 1:
        return _count_several(costs, box, cap)
    totals, cumulative = _sums(costs, cap)
    first, last = bisect_left(totals, (box.low,)), bisect_left(totals, (box.high[0] + 1,))
    return cumulative[last] - cumulative[first]


@lru_cache(maxsize=65_536)
def _count_several(costs: tuple[tuple[Cost, ...], ...], box: Box, cap: Cost) -> int:
    """As `count_rest` for several budgets. The first layer of all draws has the same boxes, so answers are kept."""
    totals, ways = _tuples(costs, cap)
    first = np.searchsorted(totals[:, 0], box.low)
    last = np.searchsorted(totals[:, 0], box.high[0], side="right")
    inside = (totals[first:last, 1:] <= np.array(box.high[1:])).all(axis=1)
    return int(ways[first:last][inside].sum())


def invert(ways: Sequence[int], position: float) -> int:
    """The option where `position` of all ways, from 0 to 1, lies. Options without a way are never chosen."""
    everything = sum(ways)
    # Exact even where the numbers of ways exceed what a float holds.
    place = min(max(int(Fraction(position) * everything), 0), everything - 1)
    for option, count in enumerate(ways):
        if place < count:
            return option
        place -= count
    raise AssertionError("a space always keeps at least one way")


def position_of(ways: Sequence[int], option: int) -> float:
    """The middle of the positions from which `invert` returns `option`."""
    return float(Fraction(2 * sum(ways[:option]) + ways[option], 2 * sum(ways)))


@lru_cache(maxsize=128)
def _sums(costs: tuple[tuple[Cost, ...], ...], cap: Cost) -> tuple[list[Cost], list[int]]:
    """The distinct sums up to `cap` of one cost of one entry per layer, ascending, and before each (and at the end) the
    number of ways to stay below it. `cap` prunes what no box can use; `costs` is sorted, so that the order of
    layers is no key.
    """
    if not costs:
        return [(0,)], [0, 1]
    totals, cumulative = _sums(costs[1:], cap)
    ways: Counter[Cost] = Counter()
    for (cost,), repeats in Counter(costs[0]).items():
        for place in range(bisect_left(totals, (cap[0] - cost + 1,))):
            ways[(totals[place][0] + cost,)] += repeats * (cumulative[place + 1] - cumulative[place])
    ascending = sorted(ways)
    before = [0]
    for total in ascending:
        before.append(before[-1] + ways[total])
    return ascending, before


@lru_cache(maxsize=128)
def _tuples(costs: tuple[tuple[Cost, ...], ...], cap: Cost) -> tuple[np.ndarray, np.ndarray]:
    """As `_sums` for several entries: the distinct sums (N, entries), ascending, and the ways to each (N,)."""
    # Where a machine's integers could not hold the number of all ways, Python's do.
    exact = np.int64 if prod(map(len, costs)) < 2**62 else np.object_
    if not costs:
        return np.zeros((1, len(cap)), np.int64), np.ones(1, exact)
    totals, ways = _tuples(costs[1:], cap)
    own, repeats = np.unique(np.array(costs[0], np.int64), axis=0, return_counts=True)
    sums = (own[:, None] + totals).reshape(-1, len(cap))
    products = np.multiply.outer(repeats.astype(exact), ways.astype(exact)).reshape(-1)
    kept = (sums <= np.array(cap)).all(axis=1)
    sums, products = sums[kept], products[kept]
    if not len(sums):
        return sums, products
    order = np.lexsort(sums.T[::-1])
    sums, products = sums[order], products[order]
    starts = np.flatnonzero(np.append(True, (np.diff(sums, axis=0) != 0).any(axis=1)))
    return sums[starts], np.add.reduceat(products, starts)
