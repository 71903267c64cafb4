"""How well signals rank architectures: Kendall's tau with its interval, and predictors that learn from genes."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import kendalltau, norm, rankdata
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import Ridge

from nas.report.agreement import RESAMPLES, percentiles, resampled_taus, resamples
from nas.samplers import lanas

# Predictors are fitted on so many random choices of the known architectures.
SPLITS = 50
KNOWN = (4, 8, 16, 24)

PREDICTORS: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "ridge": lambda features, values: Ridge().fit(features, values),
    "boosted trees": lambda features, values: GradientBoostingRegressor(
        n_estimators=50, max_depth=2, random_state=0
    ).fit(features, values),
    "LaNAS's Gaussian process": lanas.fit,
}


@dataclass(frozen=True, eq=False)
class Signal:
    """What is compared with what architectures are worth.

    Attributes:
        values_KN: values of N architectures in K measurements, better ones higher, NaN where there is none.
        targets_KN: what the architectures are worth, in each measurement.
        seconds: that a value takes.
    """

    name: str
    values_KN: np.ndarray
    targets_KN: np.ndarray
    seconds: float


def tau(signal: Signal) -> float:
    """Kendall's tau-b of values and targets, the mean over measurements; NaN where all values or all targets of a
    measurement are equal.
    """
    pairs = zip(signal.values_KN, signal.targets_KN, strict=True)
    return float(np.mean([kendalltau(value_N, target_N, nan_policy="omit").statistic for value_N, target_N in pairs]))


def taus_of_resamples(signal: Signal, counts_RN: np.ndarray) -> np.ndarray:
    """`tau` of each resample, (R,); see `nas.report.agreement.resampled_taus`."""
    pairs = zip(signal.values_KN, signal.targets_KN, strict=True)
    return np.mean([resampled_taus(value_N, target_N, counts_RN) for value_N, target_N in pairs], axis=0)


def interval(signal: Signal, count: int = RESAMPLES) -> tuple[float, float]:
    """95 % bootstrap interval of tau over architectures, percentile."""
    return percentiles(taus_of_resamples(signal, resamples(signal.values_KN.shape[1], count)))


def top_quarter(signal: Signal) -> float:
    """The share of the best quarter that is in the signal's best quarter, the mean over measurements."""
    shares = []
    for value_N, target_N in zip(signal.values_KN, signal.targets_KN, strict=True):
        known = np.flatnonzero(~np.isnan(value_N))
        size = math.ceil(len(known) / 4)
        best, chosen = (set(np.argsort(-row[known], kind="stable")[:size]) for row in (target_N, value_N))
        shares.append(len(best & chosen) / size)
    return float(np.mean(shares))


def against_other_seeds(name: str, values_SN: np.ndarray, seconds: float, targets_SN: np.ndarray) -> Signal:
    """A signal that is measured once a seed. What architectures are worth is the mean over the *other* seeds, so that
    no training is compared with its own end.
    """
    return Signal(name, values_SN, others(targets_SN), seconds)


def others(targets_SN: np.ndarray) -> np.ndarray:
    """For each seed the mean over the other seeds, (S, N)."""
    # Not by subtraction from the sum, whose rounding would make equal scores different.
    return np.stack([np.delete(targets_SN, seed, axis=0).mean(axis=0) for seed in range(len(targets_SN))])


def held_out(
    fit: Callable[[np.ndarray, np.ndarray], Any],
    genes_NF: np.ndarray,
    early_NE: np.ndarray,
    scores_N: np.ndarray,
    known: int,
    splits: int,
) -> np.ndarray:
    """Predictions for architectures from the scores of `known` random ones, which differ from split to split.

    Args:
        early_NE: further features, which are standardised by the known architectures.

    Returns:
        (splits, N), NaN for the known architectures.
    """
    rng = np.random.default_rng(0)
    result = np.full((splits, len(scores_N)), np.nan)
    for row in result:
        known_places, rest = np.split(rng.permutation(len(scores_N)), [known])
        spread = early_NE[known_places].std(axis=0)
        early = (early_NE - early_NE[known_places].mean(axis=0)) / np.where(spread > 0, spread, 1)
        features = np.concatenate((genes_NF, early), axis=1)
        # As LaNAS's surrogate does: only the order of the known scores counts.
        values = norm.ppf((rankdata(scores_N[known_places]) - 0.5) / known)
        row[rest] = fit(features[known_places], values).predict(features[rest])
    return result


def predicted(
    genes_NF: np.ndarray,
    scores_SN: np.ndarray,
    targets_SN: np.ndarray,
    early: str,
    early_SNE: np.ndarray,
    seconds: float,
) -> Iterator[Signal]:
    """The predictors' signals for architectures whose scores they do not know; at least a quarter is not known. All
    that a prediction uses is of one seed, and its targets are of the others.

    Args:
        early: how the early features are named in the signals' names.
        early_SNE: features beside the genes.
        seconds: that these features take.
    """
    number = targets_SN.shape[1]
    for name, fit in PREDICTORS.items():
        for known in (size for size in KNOWN if 4 * size <= 3 * number):
            started = time.perf_counter()
            predictions = [
                held_out(fit, genes_NF, early_NE, scores_N, known, SPLITS)
                for early_NE, scores_N in zip(early_SNE, scores_SN, strict=True)
            ]
            fitting = (time.perf_counter() - started) / (len(predictions) * SPLITS)
            targets_KN = np.repeat(others(targets_SN), SPLITS, axis=0)
            yield Signal(f"{name}, {known} known{early}", np.concatenate(predictions), targets_KN, seconds + fitting)


COLUMNS = ("signal", "tau", "95 %", "of the best quarter", "seconds")


def rows_of(signals: Sequence[Signal]) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each signal, the best first."""
    rows = []
    for signal in signals:
        value = tau(signal)
        low, high = interval(signal)
        cells = (f"{value:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{top_quarter(signal):.0%}", f"{signal.seconds:.3g}")
        rows.append((-math.inf if math.isnan(value) else value, (signal.name, *cells)))
    return [row for _, row in sorted(rows, key=lambda row: -row[0])]
