"""NSGA-II (Deb et al., 2002): Optuna selects the parents, and the space mutates them."""

import random
from collections.abc import Iterator

from optuna import Study
from optuna.samplers.nsgaii._elite_population_selection_strategy import NSGAIIElitePopulationSelectionStrategy
from optuna.trial import FrozenTrial, TrialState

from nas.samplers.random import RandomSampler
from nas.study.attributes import DUPLICATE_OF, WITHIN_BUDGET
from nas.study.ledger import Observation, architecture_of
from search_spaces.architecture import Architecture
from search_spaces.neighbourhood import neighbours

POPULATION_SIZE = 12


class NSGA2(RandomSampler):
    """NSGA-II: proposes neighbours of random parents, which are the survivors of NSGA-II's selection among all trials
    so far: the non-dominated ones first, then the least crowded. Until `POPULATION_SIZE` trials have a score, proposals
    are random.

    The parents are selected again for every proposal, so that no worker waits for a generation to end.
    """

    n_objectives = (2,)

    def proposals(
        self, study: Study, trial: FrozenTrial, observations: list[Observation], rng: random.Random
    ) -> Iterator[Architecture]:
        candidates = [
            complete
            for complete in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if complete.user_attrs[WITHIN_BUDGET] and DUPLICATE_OF not in complete.user_attrs
        ]
        if len(candidates) >= POPULATION_SIZE:
            parents = NSGAIIElitePopulationSelectionStrategy(population_size=POPULATION_SIZE)(study, candidates)
            yield from neighbours(self.space, architecture_of(rng.choice(parents)), rng)
        yield from self.propose(observations, rng)
