"""Limits on latencies, as the command line and configurations give them."""

from dataclasses import dataclass
from fractions import Fraction

from foundation.errors import shortened
from search_spaces.numbers import fraction

# In microseconds, or for "x" in multiples of the teacher's latency. "ms" comes before "s" because it also ends in "s".
_UNITS = {"ms": 1_000, "s": 1_000_000, "x": 1}


@dataclass(frozen=True)
class LatencyLimit:
    """A limit in microseconds, or relative to the teacher's latency."""

    value: Fraction
    relative: bool


def parse_latency(text: str) -> LatencyLimit:
    """Parse a limit such as "12ms", "0.012s" or "0.25x" (a quarter of the teacher's latency).

    Raises:
        ValueError: the text is no such limit.
    """
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    try:
        value = fraction(text.removesuffix(unit)) if unit else Fraction(0)
    except ValueError:
        value = Fraction(0)
    if not value:
        right = "a time above 0 such as '12ms' or '0.012s', or a part of the teacher's such as '0.25x'"
        raise ValueError(f"a latency is {right}, not {shortened(text)}")
    return LatencyLimit(value * _UNITS[unit], unit == "x")


def resolve(limit: LatencyLimit, teacher: int) -> int:
    """The limit in microseconds, rounded down.

    Args:
        teacher: the latency of the teacher in microseconds.
    """
    return int(limit.value * teacher if limit.relative else limit.value)
