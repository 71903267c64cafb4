"""Optuna's tree-structured Parzen estimator over the sizes, after a start of random draws."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optuna import Study
from optuna.distributions import FloatDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from nas.ledger import Tried
from nas.samplers.random import RandomSampler
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

START = 8


class TPE(RandomSampler):
    """`TPESampler` for the sizes once `START` trials are complete; operations are drawn as `RandomSampler` does.

    Over the operations Optuna's estimator prefers what the other trials have not tried, and with a segment's eleven
    choices and tens of trials that edits nearly every segment of every layer at once.
    """

    def proposals(
        self, study: Study, trial: FrozenTrial, tried: list[Tried], rng: random.Random
    ) -> Iterator[Architecture]:
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(complete) < START:
            yield from self.propose(tried, rng)
        while True:
            tpe = TPESampler(n_startup_trials=0, constant_liar=True, seed=rng.randrange(2**31))
            yield self.space.suggest(_Estimated(self.space, rng, tpe, study, trial))


@dataclass(frozen=True)
class _Estimated:
    """Draws operations at random and asks the estimator for sizes."""

    space: Space
    rng: random.Random
    tpe: TPESampler
    study: Study
    trial: FrozenTrial

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return self.space.draw(name, choices, self.rng)

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return float(self.tpe.sample_independent(self.study, self.trial, name, FloatDistribution(low, high)))
