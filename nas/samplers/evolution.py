"""Regularised evolution (Real et al., 2019)."""

import random
from collections.abc import Iterator
from operator import itemgetter

from nas.samplers.random import RandomSampler
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture

POPULATION = 12
TOURNAMENT = 4


class Evolution(RandomSampler):
    """Neighbours of the best of `TOURNAMENT` random ones of the youngest `POPULATION` that have a score."""

    several = False

    def propose(self, tried: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        scored = [(one.values[0], one.architecture) for one in self.evidence(tried) if one.values]
        if len(scored) >= POPULATION:
            _, parent = max(rng.sample(scored[-POPULATION:], TOURNAMENT), key=itemgetter(0))
            yield from self.space.neighbours(parent, rng)
        yield from super().propose(tried, rng)
