"""NSGA-II (Deb et al., 2002): Optuna selects the parents, the space varies them."""

import random
from collections.abc import Iterator

from optuna import Study
from optuna.samplers import NSGAIISampler
from optuna.trial import FrozenTrial

from nas.ledger import IN_BOX, Tried, architecture_of
from nas.samplers.random import RandomSampler
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

POPULATION = 12


class NSGA2(RandomSampler):
    """Neighbours of random ones of the parents that `NSGAIISampler` selects, a generation after the other.

    The first generation is random. With one objective the parents are the best so far.
    """

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space, seed)
        self._selection = NSGAIISampler(population_size=POPULATION)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        # Optuna notes it with the trial, also where the architecture is given and no sampler is asked.
        self._selection.get_trial_generation(study, trial)

    def proposals(
        self, study: Study, trial: FrozenTrial, tried: list[Tried], rng: random.Random
    ) -> Iterator[Architecture]:
        generation = self._selection.get_trial_generation(study, trial)
        selected = self._selection.get_parent_population(study, generation)
        # Optuna returns the parents in another order when it has selected them already.
        parents = sorted((one for one in selected if one.user_attrs[IN_BOX]), key=lambda one: one.number)
        if parents:
            yield from self.space.neighbours(architecture_of(rng.choice(parents)), rng)
        yield from self.propose(tried, rng)
