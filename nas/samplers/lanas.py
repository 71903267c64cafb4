"""LaNAS (Wang et al., 2019): a tree learned from the scores parts the space into good and bad regions."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from optuna.trial import TrialState
from scipy.stats import norm, rankdata
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from sklearn.linear_model import RidgeClassifier

from nas.ledger import Tried
from nas.samplers.encoding import encode
from nas.samplers.random import RandomSampler
from search_spaces.architecture import Architecture

# Trials with a score before the first tree.
START = 8
# Candidates for a proposal: random members, and neighbours of each of the leaf's best.
RANDOM, PARENTS, NEIGHBOURS = 24, 4, 12
# The surrogate learns from the smallest region around the leaf that has so many trials.
REGION = 100
# Of the surrogate: lengths over which scores change, and shares of noise in them.
LENGTHS, NOISES = (2.0, 4.0), (0.1, 0.4)


@dataclass(frozen=True)
class Region:
    """A node of the tree: the trials in it, and what parts it from its sibling (nothing does at the root)."""

    rows: np.ndarray
    classifier: RidgeClassifier | None = None
    good: bool = True

    def has(self, features: np.ndarray) -> np.ndarray:
        """Which rows of features the classifier puts on this side."""
        if self.classifier is None:
            return np.ones(len(features), dtype=bool)
        return self.classifier.predict(features) == self.good


class LaNAS(RandomSampler):
    """Members of the leaf with the highest upper confidence bounds, in the order of their expected improvement."""

    several = False
    # Least trials on either side of a split.
    least = 5
    # The constant of exploration, in standard deviations of the scores.
    exploration = 0.1

    def propose(self, tried: list[Tried], rng: random.Random) -> Iterator[Architecture]:
        evidence = self.evidence(tried)
        if sum(one.values is not None for one in evidence) >= START:
            values = ranks(evidence)
            architectures = [one.architecture for one in evidence]
            features = self.features(architectures)
            path = descend(features, values, self.least, self.exploration)
            best = path[-1].rows[np.argsort(-values[path[-1].rows], kind="stable")]
            known = set(architectures)
            candidates = dict.fromkeys(self.candidates([architectures[row] for row in best], rng))
            fresh = [one for one in candidates if one not in known]
            fresh = [fresh[row] for row in within(path, self.features(fresh))] if fresh else []
            if fresh:
                region = next(region for region in reversed(path) if len(region.rows) >= min(REGION, len(values)))
                yield from self.order(fresh, features[region.rows], values[region.rows])
        yield from super().propose(tried, rng)

    def features(self, architectures: Sequence[Architecture]) -> np.ndarray:
        return encode(architectures)

    def candidates(self, best: Sequence[Architecture], rng: random.Random) -> Iterator[Architecture]:
        for _ in range(RANDOM):
            yield self.space.sample(rng)
        for parent in best[:PARENTS]:
            yield from islice(self.space.neighbours(parent, rng), NEIGHBOURS)

    def order(self, fresh: Sequence[Architecture], features: np.ndarray, values: np.ndarray) -> list[Architecture]:
        gains = expected_improvement(features, values, self.features(fresh))
        return [fresh[row] for row in np.argsort(-gains, kind="stable")]


def ranks(evidence: Sequence[Tried]) -> np.ndarray:
    """Standard normal quantiles of the scores' ranks, so that neither scale nor outliers matter.

    A trial without a score counts as average while it runs, so that others keep their distance; as the lower quartile
    if it was stopped early; as the worst if it failed.
    """
    scores = np.array([one.values[0] if one.values else np.nan for one in evidence])
    there = ~np.isnan(scores)
    values = np.zeros(len(scores))
    values[there] = norm.ppf((rankdata(scores[there]) - 0.5) / there.sum())
    for state, value in ((TrialState.PRUNED, norm.ppf(0.25)), (TrialState.FAIL, values.min())):
        values[[one.state == state for one in evidence]] = value
    return values


def descend(features: np.ndarray, values: np.ndarray, least: int, exploration: float) -> list[Region]:
    """From the root to the leaf, always into the child of the higher upper confidence bound

        mean + 2 exploration sqrt(2 ln(trials of the parent) / trials of the child)     (Wang et al., equation 3)

    A region is parted by a classifier of its trials above the median from the others. The children have the trials
    that the classifier puts there; where one of them would have less than `least`, the region is a leaf.
    """
    path = [Region(np.arange(len(values)))]
    while True:
        rows = path[-1].rows
        own = values[rows]
        above = own > np.median(own)
        if not above.any():  # the median is the highest score, more than once
            above = own == own.max()
        if len(rows) < 2 * least or above.all():
            return path
        classifier = RidgeClassifier().fit(features[rows], above)
        predicted = classifier.predict(features[rows])
        children = [Region(rows[predicted == good], classifier, good) for good in (True, False)]
        if min(len(child.rows) for child in children) < least:
            return path

        def bound(child: Region, parent: int = len(rows)) -> float:
            visits = len(child.rows)
            return float(values[child.rows].mean() + 2 * exploration * np.sqrt(2 * np.log(parent) / visits))

        path.append(max(children, key=bound))


def within(path: Sequence[Region], features: np.ndarray) -> np.ndarray:
    """The rows of features inside the deepest region of the path that has any."""
    rows = np.arange(len(features))
    for region in path:
        deeper = rows[region.has(features[rows])]
        if not len(deeper):
            break
        rows = deeper
    return rows


def expected_improvement(features: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """How much each row of `wanted` is expected to surpass the highest of the values' posterior means.

    The surrogate is a Gaussian process, linear plus smooth plus noise, with the length and the noise of the highest
    likelihood.
    """
    surrogates = [
        GaussianProcessRegressor(
            DotProduct(1.0) + ConstantKernel(0.5) * RBF(length) + WhiteKernel(noise), optimizer=None
        ).fit(features, values)
        for length in LENGTHS
        for noise in NOISES
    ]
    surrogate = max(surrogates, key=lambda one: one.log_marginal_likelihood_value_)
    mean, deviation = surrogate.predict(wanted, return_std=True)
    best = surrogate.predict(features).max()
    gain = (mean - best) / deviation
    return deviation * (gain * norm.cdf(gain) + norm.pdf(gain))
