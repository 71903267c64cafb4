"""Repeated measurements: how they are paired, timed and summarised."""

from collections.abc import Sequence
from statistics import stdev


def error_of_mean(values: Sequence[float]) -> float:
    """The standard error of the mean, s / sqrt(n); 0 for a single value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
