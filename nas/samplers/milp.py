"""Allocations by integer programming with weights that are learned from the scores."""

import random
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import ClassVar

import numpy as np

from nas.samplers.proposer import ZeroCostProxy
from nas.samplers.random import RandomSampler
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.neighbourhood import neighbours
from search_spaces.spaces import Space

# The prior standard deviation of the weights, whose mean is 1, and the least weight.
DEVIATION, LEAST = 0.3, 0.05
# Trials whose predicted loss is more than this number of times the least one say nothing about small losses.
NEAR = 2.0
# The residual standard deviation of the regression is at least this.
NOISE = 0.002
# So many allocations are tried, until one is new.
ATTEMPTS = 5
# Every third proposal is a neighbor of the best trial.
TURNS = 3


class WeightedAllocation(RandomSampler):
    """The MILP allocation, corrected by evaluations. It adds up the predicted losses of parts, each with all others
    complete, which ignores that errors meet. So each part gets a weight. A Bayesian linear regression of 1 - fidelity
    on the predicted losses gives their distribution, and a proposal is the allocation for weights drawn from it
    (Thompson sampling). SPDY (Frantar & Alistarh, 2022) finds such weights by local search instead.

    Every third proposal is a neighbor of the best trial, as allocations have neither further blocks nor graphs
    other than activations.

    Args:
        losses: the predicted losses of an architecture's parts (parts,); without, all proposals are neighbors.
        allocate: the allocation for weights of the parts (parts,), or None if there is none.
    """

    n_objectives: ClassVar[tuple[int, ...]] = (1,)

    def __init__(
        self,
        space: Space,
        seed: int,
        proxy: ZeroCostProxy | None = None,
        *,
        losses: Callable[[Architecture], np.ndarray] | None = None,
        allocate: Callable[[np.ndarray], Architecture | None] | None = None,
    ) -> None:
        super().__init__(space, seed, proxy)
        self.losses, self.allocate = losses, allocate

    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        scored = self.scored(observations)
        if self.losses and self.allocate and scored and len(observations) % TURNS:
            losses = np.array([self.losses(architecture) for _, architecture in scored])
            sums, targets = losses.sum(axis=1), 1 - np.array([score for score, _ in scored])
            # The base model, which loses nothing whatever the weights are, says nothing about them.
            near = (sums > 0) & (sums <= NEAR * sums.min(initial=np.inf, where=sums > 0))
            generator = np.random.default_rng(rng.randrange(2**32))
            for weights in drawn_weights(losses[near], targets[near], generator) if near.any() else ():
                allocation = self.allocate(weights)
                if allocation is not None:
                    yield allocation
        if scored:
            _, best = max(scored, key=itemgetter(0))
            yield from neighbours(self.space, best, rng)
        yield from super().propose(observations, rng)


def drawn_weights(losses: np.ndarray, targets: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Weights w (parts,) from their posterior in targets = losses (scale w) + noise, the later ones farther from its
    mean. The scale is the best one for weights of 1, which are the mean of the prior.

    Args:
        losses: (trials, parts).
        targets: (trials,).
    """
    sums = losses.sum(axis=1)
    losses = losses * (targets @ sums / (sums @ sums))
    residuals = targets - losses.sum(axis=1)
    variance = max(float(residuals.var()), NOISE**2)
    covariance = np.linalg.inv(losses.T @ losses / variance + np.eye(losses.shape[1]) / DEVIATION**2)
    mean = 1 + covariance @ losses.T @ residuals / variance
    root = np.linalg.cholesky(covariance)
    for attempt in range(ATTEMPTS):
        yield np.maximum(mean + (1 + attempt) * root @ rng.standard_normal(len(mean)), LEAST)
