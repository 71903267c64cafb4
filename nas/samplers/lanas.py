"""LaNAS (Wang et al., 2019): a tree learned from the scores parts the space into good and bad regions."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
from optuna.trial import TrialState
from scipy.stats import norm, rankdata
from sklearn import config_context
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct
from sklearn.linear_model import Ridge
from threadpoolctl import ThreadpoolController

from nas.samplers.encoding import encode, widths
from nas.samplers.proposer import ZeroCostProxy
from nas.samplers.random import RandomSampler
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

# Trials with a score before the first proposal that is not random, and where there is a hint.
START, HINTED = 5, 2
# Random members that give a hint its scale, and how far equal hints may differ, relatively.
DRAWN, ROUNDING = 200, 1e-9
# The tree is learned from the first PHASE trials, and again whenever there are GROWTH times as many.
PHASE, GROWTH = 10, 1.5
# The constant of exploration, in standard deviations of the scores.
EXPLORATION = 1.0
# Candidates for a proposal: random members, and neighbours of each of the leaf's best.
RANDOM, PARENTS, NEIGHBOURS = 12, 2, 8
# The surrogate learns from the smallest region around the leaf that has so many trials.
REGION = 100
# Of the surrogate: the variance of its smooth part, and of the noise.
SMOOTH, NOISE = 0.5, 0.2
# What the classifiers and the surrogate are given is made here and needs no check in every call.
UNCHECKED = config_context(assume_finite=True, skip_parameter_validation=True)


@dataclass(frozen=True)
class Region:
    """A node of the tree: the trials in it, and what parts it from its sibling (nothing does at the root)."""

    rows: np.ndarray
    classifier: Ridge | None = None
    good: bool = True

    def has(self, features: np.ndarray) -> np.ndarray:
        """Which rows of features the classifier puts on this side."""
        if self.classifier is None:
            return np.ones(len(features), dtype=bool)
        return (self.classifier.predict(features) > 0) == self.good


class LaNAS(RandomSampler):
    """The members with the greatest expected improvement among candidates in the leaf of the tree to which the upper
    confidence bounds lead. A hint is one feature more, scaled to mean 0 and variance 1 of random members.
    """

    several = False
    # Least trials on either side of a split.
    least = 5

    def __init__(self, space: Space, seed: int, hint: ZeroCostProxy | None = None) -> None:
        super().__init__(space, seed, None if hint is None else scaled(hint, space))
        self.start = START if self.hint is None else HINTED

    def propose(self, tried: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        evidence = self.evidence(tried)
        if sum(one.values is not None for one in evidence) >= self.start:
            with libraries().limit(limits=1):
                found = self.ordered(evidence, rng)
            yield from found
        yield from super().propose(tried, rng)

    def ordered(self, evidence: Sequence[Observation], rng: random.Random) -> list[Architecture]:
        """Candidates in the leaf, the best first."""
        architectures = [one.architecture for one in evidence]
        features, values = self.features(architectures), ranks(evidence)
        path = descend(features, values, self.least)
        leaf = path[-1].rows
        best = [architectures[row] for row in leaf[np.argsort(-values[leaf], kind="stable")]]
        known = set(architectures)
        new = [one for one in dict.fromkeys(self.candidates(best, rng)) if one not in known]
        if not new:
            return []
        around = next(region.rows for region in reversed(path) if len(region.rows) >= min(REGION, len(values)))
        others = self.features(new)
        inside = within(path, others)
        order = self.order(others[inside], features[around], values[around])
        return [new[inside[row]] for row in order]

    def features(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """A row for each: the encoding, and the hint where there is one."""
        encoded = encode(architectures, widths(self.space))
        if self.hint is None:
            return encoded
        return np.column_stack((encoded, [self.hint(one) for one in architectures]))

    def candidates(self, best: list[Architecture], rng: random.Random) -> Iterator[Architecture]:
        """Random members, and neighbours of the first ones of `best`."""
        for _ in range(RANDOM):
            yield self.space.sample(rng)
        for parent in best[:PARENTS]:
            yield from islice(self.space.neighbours(parent, rng), NEIGHBOURS)

    def order(self, new: np.ndarray, features: np.ndarray, values: np.ndarray) -> Iterable[int]:
        """The rows of `new`, the best first, by what the surrogate learns from features and values."""
        return np.argsort(-expected_improvement(fit(features, values), new), kind="stable")


@cache
def libraries() -> ThreadpoolController:
    """The libraries of linear algebra, whose threads only wait for each other at problems as small as a sampler's."""
    return ThreadpoolController().select(user_api="blas")


def scaled(hint: ZeroCostProxy, space: Space) -> ZeroCostProxy | None:
    """The hint with mean 0 and variance 1 of random members; None where it is the same for all of them."""
    rng = random.Random(0)
    found = np.array([hint(space.sample(rng)) for _ in range(DRAWN)])
    mean, deviation = float(found.mean()), float(found.std())
    if deviation <= ROUNDING * abs(mean):
        return None
    return lambda architecture: (hint(architecture) - mean) / deviation


def ranks(evidence: Sequence[Observation]) -> np.ndarray:
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


@UNCHECKED
def descend(features: np.ndarray, values: np.ndarray, least: int) -> list[Region]:
    """From the root to a leaf, always into the child of the higher upper confidence bound

        mean + 2 EXPLORATION sqrt(2 ln(trials of the parent) / trials of the child)     (Wang et al., equation 3)

    A region is parted by a classifier of those above the median among the trials that the tree is learned from. All
    trials are visits of the regions where the classifiers put them. A region is a leaf where it would be parted into
    less than `least` trials.
    """
    learned = PHASE
    while learned * GROWTH <= len(values):
        learned = int(learned * GROWTH)
    path = [Region(np.arange(len(values)))]
    while True:
        rows = path[-1].rows
        own = rows[rows < learned]
        above = values[own] > np.median(values[own])
        if not above.any():  # the median is the highest score, more than once
            above = values[own] == values[own].max()
        if len(own) < 2 * least or above.all():
            return path
        classifier = Ridge().fit(features[own], np.where(above, 1.0, -1.0))
        sides = classifier.predict(features[rows]) > 0
        children = [Region(rows[sides == good], classifier, good) for good in (True, False)]
        if min((child.rows < learned).sum() for child in children) < least:
            return path

        def bound(child: Region, parent: int = len(rows)) -> float:
            visits = len(child.rows)
            return float(values[child.rows].mean() + 2 * EXPLORATION * np.sqrt(2 * np.log(parent) / visits))

        path.append(max(children, key=bound))


@UNCHECKED
def within(path: Sequence[Region], features: np.ndarray) -> np.ndarray:
    """The rows of features inside the deepest region of the path that has any."""
    rows = np.arange(len(features))
    for region in path:
        deeper = rows[region.has(features[rows])]
        if not len(deeper):
            break
        rows = deeper
    return rows


@UNCHECKED
def fit(features: np.ndarray, values: np.ndarray) -> GaussianProcessRegressor:
    """A Gaussian process of a linear and a smooth part."""
    kernel = DotProduct(0.7) + ConstantKernel(SMOOTH) * RBF(1.5)
    return GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None).fit(features, values)


@UNCHECKED
def expected_improvement(surrogate: GaussianProcessRegressor, features: np.ndarray) -> np.ndarray:
    """How much each row is expected to surpass the best trial, both as the surrogate sees them without noise."""
    best = surrogate.predict(surrogate.X_train_).max()
    mean, deviation = surrogate.predict(features, return_std=True)
    gain = (mean - best) / deviation
    return deviation * (gain * norm.cdf(gain) + norm.pdf(gain))
