"""Regularized evolution (Real et al., 2019)."""

import random
from collections.abc import Iterator
from operator import itemgetter

from nas.samplers.random import RandomSampler
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.neighbourhood import neighbours

POPULATION_SIZE = 12
TOURNAMENT_SIZE = 4


class Evolution(RandomSampler):
    """Regularized evolution: proposes a neighbour of the best of `TOURNAMENT_SIZE` random members of the population.
    The population are the latest `POPULATION_SIZE` trials with a score; until there are as many, proposals are random.
    """

    n_objectives = (1,)

    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        scored = self.scored(observations)
        if len(scored) >= POPULATION_SIZE:
            _, parent = max(rng.sample(scored[-POPULATION_SIZE:], TOURNAMENT_SIZE), key=itemgetter(0))
            yield from neighbours(self.space, parent, rng)
        yield from super().propose(observations, rng)
