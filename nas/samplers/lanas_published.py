"""LaNAS as published (Wang et al., 2019, arXiv 1906.06832); `lanas` is a variant of it.

In the learning phase, every node of the tree is split at the mean score of its trials, and a linear regression of the
score assigns unseen architectures to one of the two parts. In the search phase, upper confidence bounds choose a leaf
for each trial, and the trial is a random member of that leaf. The phases alternate.

HEIGHT and the sampler's exploration, first_random and refit_every are those of the authors' released code for
NAS-Bench-101, whose scores, accuracies between 0 and 1, are like ours. (Their distributed search on CIFAR-10 has a
height of 8, an exploration of 0.5, 2,000 random trials, and a refit after 50.)

What differs, or is left open:

- *Regression.* The released code takes 20,000 steps of Adam at a rate of 1e-5 from random weights, later 3,000, which
  may end far from the optimum. Here it is the least squares solution with the smallest norm. The mean of its
  predictions, at which the released code splits, is then the mean of the scores.
- *Sides.* As in the released code, trials that are learned from are on the side of their scores, and all other
  architectures on that of their predictions.
- *Features.* The original encodes cells of convolutions; here they are those of `encoding`.
- *Leaves.* The released tree is full, and regressions of nodes without trials are random. Here a node that cannot be
  split is a leaf (leaf_size).
- *Members of a leaf.* The released code enumerates the space; for larger ones, its authors recommend a hit-and-run
  sampler. Here random members of the space are drawn until one is in the leaf. If none of DRAWS is, the deepest node
  above the leaf that has any takes its place, where the released code takes the first leaf that is not empty.
- *Trials without a score* (running, pruned or failed) count as visits only, so that parallel trials part.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nas.samplers.regions import Path, Region, TreeSampler, descend, split, within
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture

# The number of nodes from the root to the deepest leaf.
HEIGHT = 5
# Members of the space are drawn in batches until one is in the leaf, at most this many.
BATCH, DRAWS = 50, 1000
# Directions of the features with a singular value below this share of the largest are rounding errors.
RANK_TOLERANCE = 1e-6


class PublishedLaNAS(TreeSampler):
    """LaNAS as published: regressions of the score split the space, upper confidence bounds choose a leaf, and a random
    member of the leaf is proposed. The zero-cost proxy is not used.
    """

    exploration = 0.1  # in units of the score
    leaf_size = 1  # the original has no minimum
    first_random = 10
    refit_every: int = 20

    def from_leaf(self, observations: Sequence[Observation], rng: random.Random) -> list[Architecture]:
        architectures = [observation.architecture for observation in observations]
        scores = np.array([observation.values[0] if observation.values else np.nan for observation in observations])
        scored = int((~np.isnan(scores)).sum())
        learned = scored - (scored - self.first_random) % self.refit_every
        path = path_to_leaf(self.features_of_trials(observations), scores, learned, self.leaf_size, self.exploration)
        return self.members(path, set(architectures), rng)

    def members(self, path: Path, known: set[Architecture], rng: random.Random) -> list[Architecture]:
        """New random members of the path's last region, or of the deepest one in which any are found."""
        drawn: list[Architecture] = []
        while len(drawn) < DRAWS:
            batch = [self.space.sample(rng) for _ in range(BATCH)]
            drawn += batch
            features = self.features(batch)
            in_leaf = np.logical_and.reduce([region.has(features) for region in path])
            new = [member for member, there in zip(batch, in_leaf, strict=True) if there and member not in known]
            if new:
                return new
        new = [member for member in drawn if member not in known]
        return [new[row] for row in within(path, self.features(new))] if new else []


def path_to_leaf(
    features: np.ndarray, scores: np.ndarray, learned: int, leaf_size: int, exploration: float
) -> list[Region]:
    """The path from the root to the leaf with the highest upper confidence bounds.

    A node's children are those of the trials in it from which the tree is learned that score at least their mean, and
    those below it. Later trials are visits of the nodes to which the regressions assign them, and if they have a score
    it counts in the nodes' means.

    Args:
        features: (trials, features).
        scores: (trials,), nan for trials without a score.
        learned: the tree is learned from this many trials, the first ones with a score.
    """
    features = features.astype(float)
    learn = np.zeros(len(scores), dtype=bool)
    learn[np.flatnonzero(~np.isnan(scores))[:learned]] = True

    def children(path: Path) -> tuple[Region, Region] | None:
        rows = path[-1].rows
        taught = learn[rows]
        if len(path) == HEIGHT or taught.sum() < 2 * leaf_size:
            return None
        regression = Regression.fit(features[rows[taught]], scores[rows[taught]])
        above = regression.predict(features[rows]) > 0
        above[taught] = scores[rows[taught]] >= scores[rows[taught]].mean()
        if min((taught & above).sum(), (taught & ~above).sum()) < leaf_size:
            return None
        return split(path[-1], regression, above)

    return descend(len(scores), children, lambda rows: float(np.nanmean(scores[rows])), exploration)


@dataclass(frozen=True)
class Regression:
    """A linear regression by least squares, with the smallest norm if several are equally good.

    Attributes:
        center: (features,), the mean of the features.
        weights: (features,).
    """

    center: np.ndarray
    weights: np.ndarray

    @classmethod
    def fit(cls, features: np.ndarray, scores: np.ndarray) -> "Regression":
        center = features.mean(axis=0)
        weights, *_ = np.linalg.lstsq(features - center, scores - scores.mean(), rcond=RANK_TOLERANCE)
        return cls(center, weights)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """By how much each row's score is above the mean of those that were fitted, which is also the mean of the
        regression's predictions of them.
        """
        predicted: np.ndarray = (features - self.center) @ self.weights
        return predicted
