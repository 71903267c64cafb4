"""Local search: neighbours of the best, from there when one is better."""

import random
from collections.abc import Iterator

from nas.samplers.random import RandomSampler
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture

# Neighbours in a row without improvement after which the search starts again.
PATIENCE = 30


class LocalSearch(RandomSampler):
    """Neighbours, in random order, of the best since the last start; where `PATIENCE` of them are no better, or none
    is left, it starts again from a random architecture.
    """

    several = False

    def propose(self, tried: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        best: tuple[float, Architecture] | None = None
        misses = 0
        for one in self.evidence(tried):
            if one.values and (best is None or one.values[0] > best[0]):
                best, misses = (one.values[0], one.architecture), 0
            elif best is not None and one.state.is_finished():
                misses += 1
                if misses == PATIENCE:
                    best, misses = None, 0
        if best is not None:
            yield from self.space.neighbours(best[1], rng)
        yield from super().propose(tried, rng)
