"""Kendall's tau of bootstrap resamples."""

import math

import numpy as np

RESAMPLES = 2_000


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
