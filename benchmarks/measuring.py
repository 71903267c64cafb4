"""Repeated measurements: how they are paired, timed and summarised.

What is compared takes turns: every round measures all sides, and ratios and differences are taken within a round, so
that whatever else the machine does in the meantime falls on all of them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import TypeVar

import numpy as np

Side = TypeVar("Side")
Value = TypeVar("Value")


def take_turns(
    sides: Mapping[Side, Callable[[int], Value]],
    rounds: Sequence[int],
    *,
    warmup: int = 0,
    on_value: Callable[[Side, int, Value], object] = lambda side, number, value: None,
) -> dict[Side, list[Value]]:
    """Measure every side once a round; the order is reversed in every second round, so that no side is always first.

    Args:
        sides: what is called for each side, with the number (or the seed) of the round.
        rounds: the numbers (or seeds) of the rounds.
        warmup: how many further rounds come first, with the number of the first round, whose values are dropped.
        on_value: called after every measurement that is kept, with the side, the number of the round and the value.

    Returns:
        the values of each side, in the order of the rounds.
    """
    values: dict[Side, list[Value]] = {side: [] for side in sides}
    for turn, number in enumerate([rounds[0]] * warmup + list(rounds)):
        for side in list(sides)[:: -1 if turn % 2 else 1]:
            value = sides[side](number)
            if turn >= warmup:
                values[side].append(value)
                on_value(side, number, value)
    return values


def timed(function: Callable[[], Value]) -> tuple[Value, float]:
    """What the function returns, and the seconds that it took."""
    started = time.perf_counter()
    value = function()
    return value, time.perf_counter() - started


def error_of_mean(values: Sequence[float]) -> float:
    """The standard error of the mean, s / sqrt(n); 0 for a single value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Summary:
    """A sample in five numbers.

    Attributes:
        lower: the first quartile.
        upper: the third quartile.
        error: the standard error of the mean.
    """

    median: float
    lower: float
    upper: float
    mean: float
    error: float

    def with_error(self, digits: int = 2, sign: str = "") -> str:
        """Mean and standard error, for few rounds and for scores over seeds."""
        return f"{self.mean:{sign}.{digits}f} ± {self.error:.{digits}f}"

    def with_quartiles(self, digits: int = 2) -> str:
        """Median and quartiles, for many rounds, of which some were disturbed."""
        return f"{self.median:.{digits}f} ({self.lower:.{digits}f} to {self.upper:.{digits}f})"


def summarise(values: Sequence[float]) -> Summary:
    """The five numbers of a sample of at least one value."""
    lower, upper = np.quantile(values, (0.25, 0.75))
    return Summary(median(values), float(lower), float(upper), mean(values), error_of_mean(values))


def ratio(values: Sequence[float], others: Sequence[float]) -> Summary:
    """The ratios of two sides, each within a round."""
    return summarise([value / other for value, other in zip(values, others, strict=True)])


def difference(values: Sequence[float], others: Sequence[float]) -> Summary:
    """The differences of two sides, each within a round."""
    return summarise([value - other for value, other in zip(values, others, strict=True)])
