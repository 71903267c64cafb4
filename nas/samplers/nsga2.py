"""NSGA-II (Deb et al., 2002): Optuna selects the parents, the space varies them."""

import random
from collections.abc import Iterator

from optuna import Study
from optuna.samplers.nsgaii._elite_population_selection_strategy import NSGAIIElitePopulationSelectionStrategy
from optuna.trial import FrozenTrial, TrialState

from nas.samplers.random import RandomSampler
from nas.study.ledger import IN_BOX, TWIN, Observation, architecture_of
from search_spaces.architecture import Architecture

POPULATION = 12


class NSGA2(RandomSampler):
    """Neighbours of random parents, which are those of all trials that NSGA-II would let survive (non-dominated first,
    then the least crowded). The first `POPULATION` are random.

    The parents are selected anew for every proposal, so that no worker waits for a generation to end. With one
    objective they are the best so far.
    """

    def proposals(
        self, study: Study, trial: FrozenTrial, tried: list[Observation], rng: random.Random
    ) -> Iterator[Architecture]:
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        able = [one for one in complete if one.user_attrs[IN_BOX] and TWIN not in one.user_attrs]
        if len(able) >= POPULATION:
            parents = NSGAIIElitePopulationSelectionStrategy(population_size=POPULATION)(study, able)
            yield from self.space.neighbours(architecture_of(rng.choice(parents)), rng)
        yield from self.propose(tried, rng)
