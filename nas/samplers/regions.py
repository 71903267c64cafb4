"""What both LaNAS samplers (Wang et al., 2019) share: a tree, learned from the scores, that divides the space into good
and bad regions, and upper confidence bounds that choose one of its leaves.
"""

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol

import numpy as np
from sklearn import config_context
from threadpoolctl import ThreadpoolController

from nas.samplers.encoding import encode, encoded_genes, widths
from nas.samplers.proposer import ZeroCostProxy
from nas.samplers.random import RandomSampler
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

# The inputs of the models come from the samplers, so scikit-learn need not validate them.
UNCHECKED = config_context(assume_finite=True, skip_parameter_validation=True)


class Model(Protocol):
    """A model of the scores, whose predictions are positive on the good side of a split."""

    def predict(self, features: np.ndarray) -> Any: ...


@dataclass(frozen=True)
class Region:
    """A node of the tree.

    Attributes:
        rows: the indices of its trials.
        classifier: separates it from its sibling; None at the root.
        good: whether it is on the classifier's positive side.
    """

    rows: np.ndarray
    classifier: Model | None = None
    good: bool = True

    def has(self, features: np.ndarray) -> np.ndarray:
        """Whether the classifier assigns each row of features to this region."""
        if self.classifier is None:
            return np.ones(len(features), dtype=bool)
        sides: np.ndarray = (self.classifier.predict(features) > 0) == self.good
        return sides


# A path from the root to a node.
Path = Sequence[Region]


def split(region: Region, classifier: Model, positive: np.ndarray) -> tuple[Region, Region]:
    """The good and the bad part of a region.

    Args:
        positive: for each of the region's rows, whether it is in the good part.
    """
    return Region(region.rows[positive], classifier), Region(region.rows[~positive], classifier, good=False)


def descend(
    trials: int,
    children: Callable[[Path], tuple[Region, Region] | None],
    mean: Callable[[np.ndarray], float],
    exploration: float,
) -> list[Region]:
    """The path from the root to a leaf, always into the child with the higher upper confidence bound, or into the good
    one if the bounds are equal.

    Args:
        trials: the root has the rows 0 to `trials` - 1.
        children: the two parts of the last region of a path, the good one first; None if it is a leaf.
        mean: the mean score of the trials in these rows.
    """
    path = [Region(np.arange(trials))]
    while (parts := children(path)) is not None:
        visits = len(path[-1].rows)
        good, bad = (upper_bound(mean(part.rows), len(part.rows), visits, exploration) for part in parts)
        path.append(parts[0] if good >= bad else parts[1])
    return path


def upper_bound(mean: float, visits: int, visits_of_parent: int, exploration: float) -> float:
    """The upper confidence bound of a region (Wang et al., equation 3):

    mean + 2 exploration sqrt(2 ln(visits of the parent) / visits)
    """
    return float(mean + 2 * exploration * np.sqrt(2 * np.log(visits_of_parent) / visits))


@UNCHECKED
def within(path: Path, features: np.ndarray) -> np.ndarray:
    """The indices of those rows of `features` that lie in the deepest region of the path with at least one row."""
    rows = np.arange(len(features))
    for region in path:
        deeper = rows[region.has(features[rows])]
        if not len(deeper):
            break
        rows = deeper
    return rows


class TreeSampler(RandomSampler):
    """Proposals are random until there are enough scores, and then come from a leaf of the tree (`from_leaf`).

    Args:
        settings: values that replace the attributes of these names.

    Attributes:
        exploration: the constant of `upper_bound`.
        leaf_size: a region is not split if one part would have fewer of the trials from which the tree is learned.
        first_random: proposals are random until this many trials have a score.
        refit_every: the tree is learned again after this many trials.
    """

    n_objectives = (1,)
    settings: ClassVar[tuple[str, ...]] = ("exploration", "leaf_size", "first_random", "refit_every")
    exploration: float
    leaf_size: int
    first_random: int
    refit_every: int | None

    def __init__(self, space: Space, seed: int, proxy: ZeroCostProxy | None = None, **settings: Any) -> None:
        super().__init__(space, seed, proxy)
        for name, value in settings.items():
            setattr(self, name, value)
        self._features: dict[Architecture, np.ndarray] = {}

    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        informative = self.informative(observations)
        if sum(observation.values is not None for observation in informative) >= self.first_random:
            with blas_libraries().limit(limits=1):
                proposed = self.from_leaf(informative, rng)
            yield from proposed
        yield from super().propose(observations, rng)

    @abstractmethod
    def from_leaf(self, observations: Sequence[Observation], rng: random.Random) -> list[Architecture]:
        """Members of the leaf that the bounds choose, the best proposal first; none if no new one is found."""

    def features(self, architectures: Sequence[Architecture]) -> np.ndarray:
        """One row of features for each architecture: its encoding."""
        return encode(architectures, widths(self.space), encoded_genes(self.space))

    def features_of_trials(self, observations: Sequence[Observation]) -> np.ndarray:
        """The features of the architectures of trials, which are computed once for every trial."""
        architectures = [observation.architecture for observation in observations]
        if new := [architecture for architecture in architectures if architecture not in self._features]:
            self._features.update(zip(new, self.features(new), strict=True))
        return np.stack([self._features[architecture] for architecture in architectures])


@cache
def blas_libraries() -> ThreadpoolController:
    """Controls the threads of the BLAS libraries; a sampler's small problems are solved faster on a single thread."""
    return ThreadpoolController().select(user_api="blas")
