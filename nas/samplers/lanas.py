"""A variant of LaNAS (Wang et al., 2019): a tree of classifiers that is learned from the scores divides the space into
good and bad regions. See `lanas_published` for the original.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from optuna.trial import TrialState
from scipy.stats import norm, rankdata
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct
from sklearn.linear_model import Ridge

from nas.samplers.proposer import ZeroCostProxy
from nas.samplers.regions import UNCHECKED, Path, Region, TreeSampler, descend, split, within
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.neighbourhood import neighbours
from search_spaces.spaces import Space

# Proposals are random until this many trials have a score; fewer are enough with a zero-cost proxy.
N_STARTUP_TRIALS, N_STARTUP_TRIALS_WITH_PROXY = 5, 2
# A proxy is normalised by this many random members. Its values count as equal below this relative deviation.
PROXY_SAMPLES, PROXY_TOLERANCE = 200, 1e-9
# The minimum number of trials on either side of a split.
LEAF_SIZE = 5
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


class LaNAS(TreeSampler):
    """LaNAS with a surrogate: upper confidence bounds choose a leaf of the tree, and the candidates in it are proposed
    in the order of their expected improvement by a Gaussian process. A zero-cost proxy is a further feature, scaled to
    mean 0 and variance 1 over random members of the space.

    By default, the first `N_STARTUP_TRIALS` proposals are random, or `N_STARTUP_TRIALS_WITH_PROXY` with a proxy that
    tells members apart, and the tree is learned again at `GROWTH` times as many trials.
    """

    exploration = EXPLORATION
    leaf_size = LEAF_SIZE
    first_random = N_STARTUP_TRIALS
    refit_every: int | None = None

    def __init__(self, space: Space, seed: int, proxy: ZeroCostProxy | None = None, **settings: Any) -> None:
        proxy = None if proxy is None else normalised(proxy, space)
        if proxy is not None:
            settings = {"first_random": N_STARTUP_TRIALS_WITH_PROXY, **settings}
        super().__init__(space, seed, proxy, **settings)
        # The trials from which the classifiers of the tree are learned, see `path_to_leaf`.
        self._learned, self._classifiers = np.empty((0, 0)), dict[tuple[bytes, bytes], Ridge]()

    def from_leaf(self, observations: Sequence[Observation], rng: random.Random) -> list[Architecture]:
        """New candidates in the chosen leaf, those with the greatest expected improvement first."""
        architectures = [observation.architecture for observation in observations]
        features, values = self.features_of_trials(observations), ranks(observations)
        learned = learned_trials(len(values), self.refit_every)
        if not np.array_equal(features[:learned], self._learned):
            self._learned, self._classifiers = features[:learned], {}
        path = path_to_leaf(features, values, learned, self.leaf_size, self.exploration, self._classifiers)
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
        encoded = super().features(architectures)
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


def learned_trials(trials: int, refit_every: int | None) -> int:
    """From how many of the trials the tree is learned: the first `PHASE`, and then `GROWTH` times as many as before, or
    `refit_every` more than before.
    """
    if refit_every is not None:
        return PHASE + max(0, trials - PHASE) // refit_every * refit_every
    learned = PHASE
    while learned * GROWTH <= trials:
        learned = int(learned * GROWTH)
    return learned


@UNCHECKED
def path_to_leaf(
    features: np.ndarray,
    values: np.ndarray,
    learned: int,
    leaf_size: int,
    exploration: float,
    classifiers: dict[tuple[bytes, bytes], Ridge] | None = None,
) -> list[Region]:
    """The path from the root to the leaf with the highest upper confidence bounds.

    A region is split by a classifier that learns which of the first `learned` trials in the region have a score above
    their median. Every trial, also a later one, counts as a visit of the regions to which the classifiers assign it. A
    region is a leaf if one side of its split would have fewer than `leaf_size` of the trials from which the tree is
    learned.

    Args:
        features: (trials, features).
        values: (trials,), see `ranks`.
        classifiers: those that were learned from the same `learned` rows of features before, by the rows and by which
            of them are above the median; new ones are added. Learning them takes most of the time.
    """
    known = {} if classifiers is None else classifiers

    def children(path: Path) -> tuple[Region, Region] | None:
        rows = path[-1].rows
        train_rows = rows[rows < learned]
        above = values[train_rows] > np.median(values[train_rows])
        if not above.any():  # the median equals the highest score
            above = values[train_rows] == values[train_rows].max()
        if len(train_rows) < 2 * leaf_size or above.all():
            return None
        key = train_rows.tobytes(), above.tobytes()
        if key not in known:
            known[key] = Ridge().fit(features[train_rows], np.where(above, 1.0, -1.0))
        classifier = known[key]
        parts = split(path[-1], classifier, classifier.predict(features[rows]) > 0)
        return None if min((part.rows < learned).sum() for part in parts) < leaf_size else parts

    return descend(len(values), children, lambda rows: float(values[rows].mean()), exploration)


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
