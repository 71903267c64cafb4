"""Local search with restarts."""

import random
from collections.abc import Iterator

from nas.samplers.random import RandomSampler
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.neighbourhood import neighbours

# The search restarts after this many consecutive trials without improvement.
PATIENCE = 30


class LocalSearch(RandomSampler):
    """Local search: proposes the neighbours of the best architecture since the last restart, in random order. After
    `PATIENCE` trials without improvement, or if no neighbour is left, it restarts from a random architecture.
    """

    n_objectives = (1,)

    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        best: tuple[float, Architecture] | None = None
        without_improvement = 0
        for observation in self.informative(observations):
            if observation.values and (best is None or observation.values[0] > best[0]):
                best, without_improvement = (observation.values[0], observation.architecture), 0
            elif best is not None and observation.state.is_finished():
                without_improvement += 1
                if without_improvement == PATIENCE:
                    best, without_improvement = None, 0
        if best is not None:
            yield from neighbours(self.space, best[1], rng)
        yield from super().propose(observations, rng)
