"""How well one score ranks architectures by another: Kendall's tau with a bootstrap interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2_000
# With fewer architectures a bootstrap interval is too narrow to be of use: if all pairs agree, its width is 0.
LEAST_FOR_INTERVAL = 10


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b of two scores of `count` architectures.

    Attributes:
        interval: the 95 % bootstrap interval over architectures; None for fewer than `LEAST_FOR_INTERVAL` of them.
        p: the p-value of the test that the scores are independent, which for few architectures without ties is exact.
    """

    tau: float
    interval: tuple[float, float] | None
    p: float
    count: int

    def __str__(self) -> str:
        found = f"Kendall's tau {self.tau:.2f} of {self.count} architectures"
        if self.interval is None:
            return f"{found} (too few for an interval; p = {self.p:.2f} if the scores were independent)"
        return f"{found} (95 % interval {self.interval[0]:.2f} to {self.interval[1]:.2f})"


def agreement(scores: Sequence[float], others: Sequence[float]) -> Agreement | None:
    """The agreement of two scores of the same architectures; None where tau is undefined: for fewer than three
    architectures, or if all scores on a side are equal.
    """
    from scipy.stats import kendalltau

    values_N, others_N = np.asarray(scores, float), np.asarray(others, float)
    if len(values_N) < 3:
        return None
    found = kendalltau(values_N, others_N)
    if math.isnan(found.statistic):
        return None
    interval = None
    if len(values_N) >= LEAST_FOR_INTERVAL:
        interval = percentiles(resampled_taus(values_N, others_N, resamples(len(values_N))))
    return Agreement(float(found.statistic), interval, float(found.pvalue), len(values_N))


def resamples(number: int, count: int = RESAMPLES) -> np.ndarray:
    """How often each of `number` architectures is in each resample, (count, number)."""
    return np.random.default_rng(0).multinomial(number, [1 / number] * number, size=count).astype(float)


def resampled_taus(values_N: np.ndarray, others_N: np.ndarray, counts_RN: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of each resample, (R,); NaN where it is undefined. Calling scipy for each of them would take
    minutes.

    Args:
        values_N: NaN where an architecture has no value.
        counts_RN: how often a resample has each architecture. Two copies of one architecture are no pair.
    """

    def total(pairs_NN: np.ndarray) -> np.ndarray:
        result: np.ndarray = ((counts_RN @ pairs_NN) * counts_RN).sum(axis=1)
        return result

    known = ~np.isnan(values_N)
    signs = [np.sign(row[:, None] - row) for row in (np.where(known, values_N, 0), others_N)]
    a, b = (np.where(known[:, None] & known, sign, 0.0) for sign in signs)
    with np.errstate(invalid="ignore"):
        taus: np.ndarray = total(a * b) / np.sqrt(total(a * a) * total(b * b))
    return taus


def percentiles(taus_R: np.ndarray) -> tuple[float, float]:
    """The central 95 % of the taus that are defined; NaN if none is."""
    if np.isnan(taus_R).all():
        return math.nan, math.nan
    low, high = np.nanpercentile(taus_R, [2.5, 97.5])
    return float(low), float(high)
