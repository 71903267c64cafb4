"""Random search."""

import random
from collections.abc import Iterator
from typing import ClassVar

from nas.samplers.proposer import Proposer
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture


class RandomSampler(Proposer):
    """Random search: samples independently from the space (`Space.sample`), with sizes uniform within the budget and
    graphs near the base graph.
    """

    n_objectives: ClassVar[tuple[int, ...]] = (1, 2)

    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        while True:
            yield self.space.sample(rng)
