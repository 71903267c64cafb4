"""Optuna's tree-structured Parzen estimator over the sizes, after a start of random draws."""

import random
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from nas.ledger import draw_index
from nas.samplers.random import RandomSampler
from search_spaces.spaces import Space

START = 8


class TPE(BaseSampler):
    """`TPESampler` for the sizes once `START` trials are complete; operations are drawn as `RandomSampler` does.

    Over the operations Optuna's estimator prefers what the other trials have not tried, and with a segment's eleven
    choices and tens of trials that edits nearly every segment of every layer at once.
    The random state is derived from seed and number of draws.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self.operations = RandomSampler(space, seed)
        self.seed = seed
        self.current: tuple[int, BaseSampler] = (-1, self.operations)

    def _sizes(self, study: Study, trial: FrozenTrial) -> BaseSampler:
        if self.current[0] != trial.number:
            complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            seed = random.Random(f"{self.seed}/{draw_index(study, trial)}").randrange(2**31)
            tpe = TPESampler(n_startup_trials=0, multivariate=False, constant_liar=True, seed=seed)
            self.current = (trial.number, tpe if len(complete) >= START else self.operations)
        return self.current[1]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        sized = isinstance(param_distribution, FloatDistribution)
        sampler = self._sizes(study, trial) if sized else self.operations
        return sampler.sample_independent(study, trial, param_name, param_distribution)
