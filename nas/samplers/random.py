"""Independent draws from the space's own distribution."""

import random
from collections.abc import Iterator

from nas.samplers.proposer import Proposer
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture


class RandomSampler(Proposer):
    """Sizes exactly uniform in the box, operations mostly the base graph's (`Space.sample`)."""

    several = True

    def propose(self, tried: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        while True:
            yield self.space.sample(rng)
