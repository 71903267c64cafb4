"""LaNAS as published (Wang et al., 2019), with the constants of its released code for NASBench-101."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np

from nas.samplers.encoding import encode, widths
from nas.samplers.proposer import ZeroCostProxy
from nas.samplers.random import RandomSampler
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

# The levels of the tree, the root's included.
HEIGHT = 5
# The released code knows all architectures of the space; here members of a leaf are found by drawing at most DRAWS
# random members of the space, BATCH at a time.
DRAWS, BATCH = 1000, 50


@dataclass(frozen=True, eq=False)
class Split:
    """The regression of a node, which divides architectures into those with a predicted score of at least the mean
    score of the node's trials, and the others.

    Attributes:
        weights: of the features and, last, the intercept: (F + 1,).
    """

    weights: np.ndarray
    mean: float

    @classmethod
    def fit(cls, features: np.ndarray, scores: np.ndarray) -> "Split":
        """Least squares in closed form (the smallest solution where there are more features than trials), where the
        released code takes gradient steps.

        Args:
            features: (N, F).
            scores: (N,).
        """
        weights, *_ = np.linalg.lstsq(_with_ones(features), scores, rcond=None)
        return cls(weights, float(scores.mean()))

    def good(self, features: np.ndarray) -> np.ndarray:
        """Whether each row of features (N, F) belongs to the good side."""
        return np.asarray(_with_ones(features) @ self.weights >= self.mean)


class LaNASPublished(RandomSampler):
    """LaNAS as published: a tree in which every node divides its trials at their mean score and learns a linear
    regression of the score, which divides all other architectures; the upper confidence bound of equation 3,

        mean + 2 exploration sqrt(2 ln(trials of the parent) / trials of the child),

    chooses a leaf, and a random member of it is proposed. The tree is learned from the first `first_random` trials, and
    again after every `refit_every` further ones; in between, trials count for the nodes to which the regressions assign
    them. Trials without a score, running ones included, are left out.

    Scores are used as they are, so `exploration` has their unit. A node is a leaf at height `HEIGHT`, or if one of its
    sides would have fewer than `leaf_size` trials; the released code splits empty nodes, too.
    """

    n_objectives = (1,)

    def __init__(
        self,
        space: Space,
        seed: int,
        proxy: ZeroCostProxy | None = None,
        *,
        exploration: float = 0.1,
        leaf_size: int = 1,
        first_random: int = 10,
        refit_every: int = 20,
    ) -> None:
        super().__init__(space, seed)
        self.exploration, self.leaf_size = exploration, leaf_size
        self.first_random, self.refit_every = first_random, refit_every

    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        scored = [observation for observation in self.informative(observations) if observation.values is not None]
        if len(scored) >= max(1, self.first_random):
            features = self.features([observation.architecture for observation in scored])
            scores = np.array([observation.values[0] for observation in scored if observation.values])
            path = self.descend(features, scores)
            for _ in range(DRAWS // BATCH):
                drawn = [self.space.sample(rng) for _ in range(BATCH)]
                inside = np.ones(BATCH, dtype=bool)
                for split, good in path:
                    inside &= split.good(self.features(drawn)) == good
                yield from (member for member, is_inside in zip(drawn, inside, strict=True) if is_inside)
        yield from super().propose(observations, rng)

    def features(self, architectures: list[Architecture]) -> np.ndarray:
        """One row of features for each architecture."""
        return np.asarray(encode(architectures, widths(self.space)), dtype=np.float64)

    def descend(self, features: np.ndarray, scores: np.ndarray) -> list[tuple[Split, bool]]:
        """The splits from the root to the chosen leaf, each with whether the leaf is on its good side.

        Args:
            features: of the trials with a score, in order: (N, F).
            scores: (N,).
        """
        later = (len(scores) - self.first_random) // self.refit_every * self.refit_every
        learned = self.first_random + max(0, later)
        rows, path = np.arange(len(scores)), list[tuple[Split, bool]]()
        while len(path) < HEIGHT - 1:
            train = rows[rows < learned]
            split = Split.fit(features[train], scores[train])
            good = np.where(rows < learned, scores[rows] >= split.mean, split.good(features[rows]))
            if min((good[rows < learned]).sum(), (~good[rows < learned]).sum()) < max(1, self.leaf_size):
                break
            sides = {side: rows[good == side] for side in (True, False)}
            chosen = max(sides, key=lambda side: self.bound(scores[sides[side]], len(rows)))
            path.append((split, chosen))
            rows = sides[chosen]
        return path

    def bound(self, scores: np.ndarray, parent: int) -> float:
        """The upper confidence bound of a node with these scores, whose parent has `parent` trials."""
        if not len(scores):
            return inf
        return float(scores.mean()) + 2 * self.exploration * sqrt(2 * log(parent) / len(scores))


def _with_ones(features: np.ndarray) -> np.ndarray:
    return np.column_stack((features, np.ones(len(features))))
