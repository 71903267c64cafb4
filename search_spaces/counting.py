"""Counts the ways to choose one option for every part so that the summed costs stay within bounds.

A cost is a tuple of integers, one for each budget. The first entry of a sum is bounded from both sides, the others only
from above. Dynamic programming over the parts gives the counts, which allow uniform sampling without rejection.

The counts are exact, except where a part has more than `MANY` options or more than `MOST` sums would have to be formed
at a time. Sums are then counted in steps of a grid: samples are only close to uniform, an option counts 0 if and only
if it exceeds a bound even with the cheapest options of all other parts, and there may be no lower bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

Cost = tuple[int, ...]
# Above so many options of a part, or sums at a time, sums are counted on a grid.
MANY = 128
MOST = 2**23
# The number of budgets -> the steps of the grid for each of them.
STEPS = {1: 4096, 2: 256, 3: 48}


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
    """The number of ways to choose one cost per part with their sum within the bounds. On a grid it is 0 if even the
    cheapest options exceed them, and approximate otherwise.
    """
    if is_on_grid(costs, bounds.high) and add(*(cheapest(layer, bounds.high) for layer in costs)) not in bounds:
        return 0
    first, *rest = sorted(tuple(layer) for layer in costs)
    return sum(count_each(first, tuple(rest), bounds, bounds.high))


def count_each(options: Sequence[Cost], rest: tuple[tuple[Cost, ...], ...], bounds: Bounds, cap: Cost) -> list[int]:
    """For each option of a part, the number of ways to choose the `rest`, in sorted order, so that the sum is within
    the bounds. `cap` is the upper bound of all parts together: the dynamic program ignores larger sums.
    """
    sums = None if _has_many(rest) else _sums(rest, cap)
    if sums is None:
        return _count_on_grid(options, rest, bounds, cap)
    totals, ways, cumulative = sums
    counts = []
    for option in options:
        left = bounds.without(option)
        if left.low > left.high[0] or min(left.high) < 0:
            counts.append(0)
            continue
        first = np.searchsorted(totals[:, 0], left.low)
        last = np.searchsorted(totals[:, 0], left.high[0], side="right")
        if len(cap) == 1:
            counts.append(int(cumulative[last] - cumulative[first]))
        else:
            inside = (totals[first:last, 1:] <= np.array(left.high[1:])).all(axis=1)
            counts.append(int(ways[first:last][inside].sum()))
    return counts


def is_on_grid(costs: Sequence[Sequence[Cost]], cap: Cost) -> bool:
    """Whether the sums of these parts, or of all but the first of them, are counted on a grid."""
    return _has_many(costs) or _sums(tuple(sorted(map(tuple, costs))[1:]), cap) is None


def _has_many(costs: Sequence[Sequence[Cost]]) -> bool:
    return any(len(layer) > MANY for layer in costs)


def cheapest(layer: Sequence[Cost], cap: Cost) -> Cost:
    """The option whose costs, as fractions of the budgets `cap`, have the smallest sum."""
    return min(layer, key=lambda cost: sum(spent / max(limit, 1) for spent, limit in zip(cost, cap, strict=True)))


def _count_on_grid(options: Sequence[Cost], rest: tuple[tuple[Cost, ...], ...], bounds: Bounds, cap: Cost) -> list[int]:
    """`count_each` on a grid: at least 1 for an option that the cheapest others complete, and 0 for all others."""
    left = np.array(bounds.high) - np.array(options)
    fits = (left >= np.array(add(*(cheapest(layer, cap) for layer in rest)))).all(axis=1)
    cumulative, step = _grid(rest, cap)
    cells = np.clip(left // step, 0, STEPS[len(cap)])
    counts = np.maximum(cumulative[tuple(cells.T)], 1)
    return [int(count) if fit else 0 for count, fit in zip(counts, fits, strict=True)]


@lru_cache(maxsize=128)
def _grid(costs: tuple[tuple[Cost, ...], ...], cap: Cost) -> tuple[np.ndarray, np.ndarray]:
    """The number of ways (STEPS + 1, ...), one dimension for each budget, to choose costs whose sum, each rounded to
    whole steps, is at most the index; and the size (budgets,) of a step.
    """
    step = np.maximum(1, -(-np.array(cap) // STEPS[len(cap)]))
    ways = np.zeros((STEPS[len(cap)] + 1,) * len(cap))
    ways[(0,) * len(cap)] = 1
    for layer in costs:
        cells, repeats = np.unique((np.array(layer) + step // 2) // step, axis=0, return_counts=True)
        total = np.zeros_like(ways)
        for cell, repeat in zip(cells, repeats, strict=True):
            if (cell < len(ways)).all():
                target = tuple(slice(int(place), None) for place in cell)
                source = tuple(slice(len(ways) - int(place)) for place in cell)
                total[target] += repeat * ways[source]
        ways = total
    for dimension in range(len(cap)):
        ways = ways.cumsum(axis=dimension)
    return ways, step


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
def _sums(costs: tuple[tuple[Cost, ...], ...], cap: Cost) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The distinct sums (N, budgets) of one cost per layer in ascending order, without those that exceed `cap`; the
    number of ways (N,) to reach each; and the number of ways (N + 1,) to stay below each, and in all. None if
    more than `MOST` sums would have to be formed at a time.

    `costs` is sorted so that the cache key is independent of the layers' order.
    """
    # Use Python integers if the number of all ways might not fit into 64 bits.
    exact = np.int64 if prod(map(len, costs)) < 2**62 else np.object_
    sums, ways = np.zeros((1, len(cap)), np.int64), np.ones(1, exact)
    if costs:
        rest = _sums(costs[1:], cap)
        layer, repeats = np.unique(np.array(costs[0], np.int64), axis=0, return_counts=True)
        if rest is None or len(layer) * len(rest[0]) > MOST:
            return None
        totals, ways, _ = rest
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
