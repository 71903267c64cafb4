"""Counts the ways to choose one option for every layer so that the summed costs stay within bounds.

A cost is a tuple of integers, one for each budget. The first entry of a sum is bounded from both sides, the others only
from above. Dynamic programming over the layers gives exact counts, which allow uniform sampling without rejection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

Cost = tuple[int, ...]


@dataclass(frozen=True)
class Bounds:
    """The set of costs whose first entry is at least `low` and whose entries are all at most those of `high`."""

    low: int
    high: Cost

    def __contains__(self, total: Cost) -> bool:
        return self.low <= total[0] and all(spent <= limit for spent, limit in zip(total, self.high, strict=True))

    def without(self, cost: Cost) -> "Bounds":
        """The bounds on the remaining summands of a sum that includes `cost`."""
        return Bounds(self.low - cost[0], tuple(limit - spent for limit, spent in zip(self.high, cost, strict=True)))


def add(*costs: Cost) -> Cost:
    """The sum, entry by entry."""
    return tuple(map(sum, zip(*costs, strict=True)))


def count_within(costs: Sequence[Sequence[Cost]], bounds: Bounds) -> int:
    """The number of ways to choose one cost of every layer so that their sum is within the bounds."""
    first, *rest = sorted(tuple(layer) for layer in costs)
    return sum(count_rest(tuple(rest), bounds.without(cost), bounds.high) for cost in first)


def count_rest(costs: tuple[tuple[Cost, ...], ...], bounds: Bounds, cap: Cost) -> int:
    """As `count_within`, for layers in sorted order. `cap` is the upper bound of all layers together: the dynamic
    program ignores larger sums.
    """
    if bounds.low > bounds.high[0] or min(bounds.high) < 0:
        return 0
    totals, ways, cumulative = _sums(costs, cap)
    first = np.searchsorted(totals[:, 0], bounds.low)
    last = np.searchsorted(totals[:, 0], bounds.high[0], side="right")
    if len(cap) == 1:
        return int(cumulative[last] - cumulative[first])
    inside = (totals[first:last, 1:] <= np.array(bounds.high[1:])).all(axis=1)
    return int(ways[first:last][inside].sum())


def invert(ways: Sequence[int], position: float) -> int:
    """The option at `position`, from 0 to 1, of the cumulative distribution; each option weighs its number of ways.

    Options with zero ways are never chosen.
    """
    total = sum(ways)
    # Fractions are exact even if the numbers of ways exceed the range of a float.
    index = min(max(int(Fraction(position) * total), 0), total - 1)
    for option, count in enumerate(ways):
        if index < count:
            return option
        index -= count
    raise AssertionError("a space always keeps at least one way")


def position_of(ways: Sequence[int], option: int) -> float:
    """The midpoint of the interval of positions for which `invert` returns `option`."""
    return float(Fraction(2 * sum(ways[:option]) + ways[option], 2 * sum(ways)))


@lru_cache(maxsize=128)
def _sums(costs: tuple[tuple[Cost, ...], ...], cap: Cost) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct sums (N, budgets) of one cost per layer in ascending order, without those that exceed `cap`; the
    number of ways (N,) to reach each; and the number of ways (N + 1,) to stay below each, and in all.

    `costs` is sorted so that the cache key is independent of the layers' order.
    """
    # Use Python integers if the number of all ways might not fit into 64 bits.
    exact = np.int64 if prod(map(len, costs)) < 2**62 else np.object_
    sums, ways = np.zeros((1, len(cap)), np.int64), np.ones(1, exact)
    if costs:
        totals, ways, _ = _sums(costs[1:], cap)
        layer, repeats = np.unique(np.array(costs[0], np.int64), axis=0, return_counts=True)
        sums = (layer[:, None] + totals).reshape(-1, len(cap))
        products = np.multiply.outer(repeats.astype(exact), ways.astype(exact)).reshape(-1)
        within = (sums <= np.array(cap)).all(axis=1)
        sums, ways = sums[within], products[within]
    if len(sums) > 1:
        order = np.lexsort(sums.T[::-1])
        sums, ways = sums[order], ways[order]
        starts = np.flatnonzero(np.append(True, (np.diff(sums, axis=0) != 0).any(axis=1)))
        sums, ways = sums[starts], np.add.reduceat(ways, starts)
    return sums, ways, np.concatenate((np.zeros(1, exact), np.cumsum(ways)))
