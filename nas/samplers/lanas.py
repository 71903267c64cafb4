"""LaNAS (Wang et al., 2019): a tree of classifiers that is learned from the scores divides the space into good and bad
regions.
"""

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
from search_spaces.neighbourhood import neighbours
from search_spaces.spaces import Space

# Proposals are random until this many trials have a score; fewer are enough with a zero-cost proxy.
N_STARTUP_TRIALS, N_STARTUP_TRIALS_WITH_PROXY = 5, 2
# A proxy is normalised by this many random members. Its values count as equal below this relative deviation.
PROXY_SAMPLES, PROXY_TOLERANCE = 200, 1e-9
# The tree is learned from the first PHASE trials, and again whenever there are GROWTH times as many.
PHASE, GROWTH = 10, 1.5
# The exploration constant of the upper confidence bounds, in standard deviations of the scores.
EXPLORATION = 1.0
# The candidates for a proposal: RANDOM random members, and NEIGHBOURS neighbours of each of the leaf's PARENTS best
# trials.
RANDOM, PARENTS, NEIGHBOURS = 12, 2, 8
# The surrogate learns from the smallest region around the leaf that has at least this many trials.
REGION = 100
# The prior variances of the surrogate's smooth part and of the noise.
SMOOTH, NOISE = 0.5, 0.2
# The inputs of the classifiers and of the surrogate come from this module, so scikit-learn need not validate them.
UNCHECKED = config_context(assume_finite=True, skip_parameter_validation=True)


@dataclass(frozen=True)
class Region:
    """A node of the tree.

    Attributes:
        rows: the indices of its trials.
        classifier: separates it from its sibling; None at the root.
        good: whether it is on the classifier's positive side.
    """

    rows: np.ndarray
    classifier: Ridge | None = None
    good: bool = True

    def has(self, features: np.ndarray) -> np.ndarray:
        """Whether the classifier assigns each row of features to this region."""
        if self.classifier is None:
            return np.ones(len(features), dtype=bool)
        return (self.classifier.predict(features) > 0) == self.good


class LaNAS(RandomSampler):
    """LaNAS: upper confidence bounds choose a leaf of the tree, and the candidates in it are proposed in the order of
    their expected improvement by a Gaussian process. A zero-cost proxy is a further feature, scaled to mean 0 and
    variance 1 over random members of the space.
    """

    n_objectives = (1,)
    # The minimum number of trials on either side of a split.
    min_samples_leaf = 5

    def __init__(self, space: Space, seed: int, proxy: ZeroCostProxy | None = None) -> None:
        super().__init__(space, seed, None if proxy is None else normalised(proxy, space))
        self.n_startup_trials = N_STARTUP_TRIALS if self.proxy is None else N_STARTUP_TRIALS_WITH_PROXY

    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        informative = self.informative(observations)
        if sum(observation.values is not None for observation in informative) >= self.n_startup_trials:
            with blas_libraries().limit(limits=1):
                proposed = self.ordered(informative, rng)
            yield from proposed
        yield from super().propose(observations, rng)

    def ordered(self, observations: Sequence[Observation], rng: random.Random) -> list[Architecture]:
        """New candidates in the chosen leaf, those with the greatest expected improvement first."""
        architectures = [observation.architecture for observation in observations]
        features, values = self.features(architectures), ranks(observations)
        path = descend(features, values, self.min_samples_leaf)
        leaf = path[-1].rows
        best = [architectures[row] for row in leaf[np.argsort(-values[leaf], kind="stable")]]
        known = set(architectures)
        new = [candidate for candidate in dict.fromkeys(self.candidates(best, rng)) if candidate not in known]
        if not new:
            return []
        region = next(region.rows for region in reversed(path) if len(region.rows) >= min(REGION, len(values)))
        new_features = self.features(new)
        inside = within(path, new_features)
        order = self.order(new_features[inside], features[region], values[region])
        return [new[inside[row]] for row in order]

    def features(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """One row of features for each architecture: its encoding, and the value of the proxy if there is one."""
        encoded = encode(architectures, widths(self.space))
        if self.proxy is None:
            return encoded
        return np.column_stack((encoded, [self.proxy(architecture) for architecture in architectures]))

    def candidates(self, best: list[Architecture], rng: random.Random) -> Iterator[Architecture]:
        """Yield random members of the space, and neighbours of the first `PARENTS` architectures of `best`."""
        for _ in range(RANDOM):
            yield self.space.sample(rng)
        for parent in best[:PARENTS]:
            yield from islice(neighbours(self.space, parent, rng), NEIGHBOURS)

    def order(self, new: np.ndarray, features: np.ndarray, values: np.ndarray) -> Iterable[int]:
        """The row numbers of `new`, the best first, by a surrogate that is fitted to `features` and `values`."""
        return np.argsort(-expected_improvement(fit(features, values), new), kind="stable")


@cache
def blas_libraries() -> ThreadpoolController:
    """Controls the threads of the BLAS libraries; a sampler's small problems are solved faster on a single thread."""
    return ThreadpoolController().select(user_api="blas")


def normalised(proxy: ZeroCostProxy, space: Space) -> ZeroCostProxy | None:
    """The proxy scaled to mean 0 and variance 1 over random members; None if it is the same for all of them."""
    rng = random.Random(0)
    values = np.array([proxy(space.sample(rng)) for _ in range(PROXY_SAMPLES)])
    mean, deviation = float(values.mean()), float(values.std())
    if deviation <= PROXY_TOLERANCE * abs(mean):
        return None
    return lambda architecture: (proxy(architecture) - mean) / deviation


def ranks(observations: Sequence[Observation]) -> np.ndarray:
    """The standard normal quantiles of the scores' ranks, so that neither their scale nor outliers matter.

    A running trial counts as average, so that other proposals keep their distance from it. A pruned trial counts as the
    lower quartile, and a failed one as the worst.
    """
    scores = np.array([observation.values[0] if observation.values else np.nan for observation in observations])
    scored = ~np.isnan(scores)
    values = np.zeros(len(scores))
    values[scored] = norm.ppf((rankdata(scores[scored]) - 0.5) / scored.sum())
    for state, value in ((TrialState.PRUNED, norm.ppf(0.25)), (TrialState.FAIL, values.min())):
        values[[observation.state == state for observation in observations]] = value
    return values


@UNCHECKED
def descend(features: np.ndarray, values: np.ndarray, min_samples_leaf: int) -> list[Region]:
    """The path from the root to a leaf, always into the child with the higher upper confidence bound

        mean + 2 EXPLORATION sqrt(2 ln(trials of the parent) / trials of the child)     (Wang et al., equation 3)

    The tree is learned from the first trials only (`PHASE`, `GROWTH`). A region is split by a classifier that learns
    which of these trials in the region have a score above their median. Every trial, also a later one, counts as a
    visit of the regions to which the classifiers assign it. A region is a leaf if one side of its split would have
    fewer than `min_samples_leaf` of the trials from which the tree is learned.
    """
    learned = PHASE
    while learned * GROWTH <= len(values):
        learned = int(learned * GROWTH)
    path = [Region(np.arange(len(values)))]
    while True:
        rows = path[-1].rows
        train_rows = rows[rows < learned]
        above = values[train_rows] > np.median(values[train_rows])
        if not above.any():  # the median equals the highest score
            above = values[train_rows] == values[train_rows].max()
        if len(train_rows) < 2 * min_samples_leaf or above.all():
            return path
        classifier = Ridge().fit(features[train_rows], np.where(above, 1.0, -1.0))
        sides = classifier.predict(features[rows]) > 0
        children = [Region(rows[sides == good], classifier, good) for good in (True, False)]
        if min((child.rows < learned).sum() for child in children) < min_samples_leaf:
            return path

        def bound(child: Region, parent: int = len(rows)) -> float:
            visits = len(child.rows)
            return float(values[child.rows].mean() + 2 * EXPLORATION * np.sqrt(2 * np.log(parent) / visits))

        path.append(max(children, key=bound))


@UNCHECKED
def within(path: Sequence[Region], features: np.ndarray) -> np.ndarray:
    """The indices of those rows of `features` that lie in the deepest region of the path with at least one row."""
    rows = np.arange(len(features))
    for region in path:
        deeper = rows[region.has(features[rows])]
        if not len(deeper):
            break
        rows = deeper
    return rows


@UNCHECKED
def fit(features: np.ndarray, values: np.ndarray) -> GaussianProcessRegressor:
    """Fit a Gaussian process whose kernel is the sum of a linear and a smooth one."""
    kernel = DotProduct(0.7) + ConstantKernel(SMOOTH) * RBF(1.5)
    return GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None).fit(features, values)


@UNCHECKED
def expected_improvement(surrogate: GaussianProcessRegressor, features: np.ndarray) -> np.ndarray:
    """The expected improvement of each row over the best trial, whose value is also predicted, without noise."""
    best = surrogate.predict(surrogate.X_train_).max()
    mean, deviation = surrogate.predict(features, return_std=True)
    gain = (mean - best) / deviation
    return deviation * (gain * norm.cdf(gain) + norm.pdf(gain))
