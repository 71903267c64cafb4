"""Random search."""

import random
from collections.abc import Iterator
from typing import ClassVar

from nas.samplers.proposer import Proposer
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture


class RandomSampler(Proposer):
    """Independent draws from the space's own distribution (`Space.sample`): sizes uniform inside the budget, operations
    mostly the base graph's.
    """

    n_objectives: ClassVar[tuple[int, ...]] = (1, 2)

    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        while True:
            yield self.space.sample(rng)
