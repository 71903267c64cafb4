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


class TPE(RandomSampler):
    """`TPESampler` for the sizes once `START` trials are complete; operations are drawn as `RandomSampler` does.

    Over the operations Optuna's estimator prefers what the other trials have not tried, and with a segment's eleven
    choices and tens of trials that edits nearly every segment of every layer at once.
    The random state is derived from seed and number of draws.
    """

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space, seed)
        self.current: tuple[int, BaseSampler | None] = (-1, None)

    def _estimator(self, study: Study, trial: FrozenTrial) -> BaseSampler | None:
        """The estimator of this trial, all of whose sizes it gives; None while too few trials are complete."""
        if self.current[0] != trial.number:
            complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            seed = random.Random(f"{self.seed}/{draw_index(study, trial)}").randrange(2**31)
            tpe = TPESampler(n_startup_trials=0, multivariate=False, constant_liar=True, seed=seed)
            self.current = (trial.number, tpe if len(complete) >= START else None)
        return self.current[1]

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        estimator = self._estimator(study, trial) if isinstance(param_distribution, FloatDistribution) else None
        if estimator is None:
            return super().sample_independent(study, trial, param_name, param_distribution)
        return estimator.sample_independent(study, trial, param_name, param_distribution)
