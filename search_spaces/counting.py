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
    totals, cumulative = _sums(costs, cap)
    first, last = bisect_left(totals, (box.low,)), bisect_left(totals, (box.high[0] + 1,))
    if len(cap) == 1:
        return cumulative[last] - cumulative[first]
    return sum(cumulative[place + 1] - cumulative[place] for place in range(first, last) if totals[place] in box)


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
    """The distinct sums up to `cap` of one cost per layer, ascending, and before each (and at the end) the
    number of ways to stay below it. `cap` prunes what no box can use; `costs` is sorted, so that the order of
    layers is no key.
    """
    if not costs:
        return [(0,) * len(cap)], [0, 1]
    totals, cumulative = _sums(costs[1:], cap)
    ways: Counter[Cost] = Counter()
    summed: Cost
    for cost, repeats in Counter(costs[0]).items():
        room = tuple(most - spent for most, spent in zip(cap, cost, strict=True))
        for place in range(bisect_left(totals, (room[0] + 1,))):
            total = totals[place]
            if len(cap) == 1:
                summed = (total[0] + cost[0],)  # the usual case, and the innermost loop of every draw
            elif any(spent > most for spent, most in zip(total, room, strict=True)):
                continue
            else:
                summed = add(total, cost)
            ways[summed] += repeats * (cumulative[place + 1] - cumulative[place])
    ascending = sorted(ways)
    before = [0]
    for total in ascending:
        before.append(before[-1] + ways[total])
    return ascending, before
