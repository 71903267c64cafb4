"""How well signals rank architectures: Kendall's tau with its interval, and what learns from genes."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm, rankdata
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import Ridge

from nas.samplers import lanas

RESAMPLES = 2_000
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
    """Values of N architectures in K measurements, better ones higher, NaN where there is none; in each what the
    architectures are worth; and the seconds that a value takes.
    """

    name: str
    values_KN: np.ndarray
    targets_KN: np.ndarray
    seconds: float


def taus(signal: Signal, counts_RN: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of values and targets, the mean over measurements, of each resample (R,).

    Args:
        counts_RN: how often a resample has each architecture. Two copies of one are no pair. NaN where all values or
            all targets that a resample has are equal.
    """

    def total(pairs_NN: np.ndarray) -> np.ndarray:
        result: np.ndarray = ((counts_RN @ pairs_NN) * counts_RN).sum(axis=1)
        return result

    found = []
    for value_N, target_N in zip(signal.values_KN, signal.targets_KN, strict=True):
        there = ~np.isnan(value_N)
        signs = [np.sign(one[:, None] - one) for one in (np.where(there, value_N, 0), target_N)]
        a, b = (np.where(there[:, None] & there, sign, 0.0) for sign in signs)
        with np.errstate(invalid="ignore"):
            found.append(total(a * b) / np.sqrt(total(a * a) * total(b * b)))
    return np.mean(found, axis=0)


def interval(signal: Signal, resamples: int = RESAMPLES) -> tuple[float, float]:
    """95 % bootstrap interval of tau over architectures, percentile."""
    number = signal.values_KN.shape[1]
    counts = np.random.default_rng(0).multinomial(number, [1 / number] * number, size=resamples)
    found = taus(signal, counts.astype(float))
    if np.isnan(found).all():
        return math.nan, math.nan
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return float(low), float(high)


def top_quarter(signal: Signal) -> float:
    """The share of the best quarter that is in the signal's best quarter, the mean over measurements."""
    shares = []
    for value_N, target_N in zip(signal.values_KN, signal.targets_KN, strict=True):
        there = np.flatnonzero(~np.isnan(value_N))
        size = math.ceil(len(there) / 4)
        best, chosen = (set(np.argsort(-one[there], kind="stable")[:size]) for one in (target_N, value_N))
        shares.append(len(best & chosen) / size)
    return float(np.mean(shares))


def against_other_seeds(name: str, values_SN: np.ndarray, targets_SN: np.ndarray, seconds: float) -> Signal:
    """A signal that is measured once a seed; what architectures are worth is the mean over the *other* seeds, so that a
    training is never compared with its own end.
    """
    return Signal(name, values_SN, others(targets_SN), seconds)


def others(targets_SN: np.ndarray) -> np.ndarray:
    """For each seed the mean over the others."""
    # Not by subtraction, whose rounding would part equal scores.
    return np.stack([np.delete(targets_SN, seed, axis=0).mean(axis=0) for seed in range(len(targets_SN))])


def held_out(
    fit: Callable[[np.ndarray, np.ndarray], Any],
    genes_NF: np.ndarray,
    early_NE: np.ndarray,
    scores_N: np.ndarray,
    known: int,
    splits: int,
) -> np.ndarray:
    """Predictions (splits, N) of what `known` random architectures do not tell, which differ from split to split; NaN
    for the known ones.

    Args:
        early_NE: further features, which get the mean 0 and the variance 1 of the known ones.
    """
    rng = np.random.default_rng(0)
    result = np.full((splits, len(scores_N)), np.nan)
    for row in result:
        own, rest = np.split(rng.permutation(len(scores_N)), [known])
        spread = early_NE[own].std(axis=0)
        early = (early_NE - early_NE[own].mean(axis=0)) / np.where(spread > 0, spread, 1)
        features = np.concatenate((genes_NF, early), axis=1)
        # As LaNAS's surrogate: only the order of the known ones counts.
        values = norm.ppf((rankdata(scores_N[own]) - 0.5) / known)
        row[rest] = fit(features[own], values).predict(features[rest])
    return result


def predicted(
    genes_NF: np.ndarray,
    scores_SN: np.ndarray,
    targets_SN: np.ndarray,
    early: str,
    early_SNE: np.ndarray,
    seconds: float,
) -> Iterator[Signal]:
    """What the predictors tell of architectures whose scores they do not know, from genes and what `early` names, which
    takes `seconds`; at least a quarter is not known. All but the targets of other seeds is of one seed.
    """
    number = targets_SN.shape[1]
    for name, fit in PREDICTORS.items():
        for known in (size for size in KNOWN if 4 * size <= 3 * number):
            started = time.perf_counter()
            found = [
                held_out(fit, genes_NF, own, scores, known, SPLITS)
                for own, scores in zip(early_SNE, scores_SN, strict=True)
            ]
            fitting = (time.perf_counter() - started) / (len(found) * SPLITS)
            targets_KN = np.repeat(others(targets_SN), SPLITS, axis=0)
            yield Signal(f"{name}, {known} known{early}", np.concatenate(found), targets_KN, seconds + fitting)


def table(signals: Sequence[Signal]) -> str:
    """One line a signal, the best first."""
    rows = []
    for signal in signals:
        tau = float(taus(signal, np.ones((1, signal.values_KN.shape[1])))[0])
        low, high = interval(signal)
        cells = (f"{tau:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{top_quarter(signal):.0%}", f"{signal.seconds:.3g}")
        rows.append((-math.inf if math.isnan(tau) else tau, f"| {signal.name} | {' | '.join(cells)} |"))
    lines = [line for _, line in sorted(rows, key=lambda row: -row[0])]
    return "\n".join(["| signal | tau | 95 % | of the top quarter | seconds |", "|---|---|---|---|---|", *lines])
