"""Optuna's tree-structured Parzen estimator over the sizes, after a start of random draws."""

import random
from collections.abc import Iterator, Mapping, Sequence
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
    """`TPESampler` for all sizes together once `START` trials are complete; operations are drawn as `RandomSampler`
    does.

    Over the operations Optuna's estimator prefers what the other trials have not tried, and with a segment's eleven
    choices and tens of trials that edits nearly every segment of every layer at once.
    """

    def proposals(
        self, study: Study, trial: FrozenTrial, tried: list[Tried], rng: random.Random
    ) -> Iterator[Architecture]:
        trials = study.get_trials(deepcopy=False)
        if sum(one.state == TrialState.COMPLETE for one in trials) < START:
            yield from self.propose(tried, rng)
        sizes = {
            name: distribution
            for one in trials
            for name, distribution in one.distributions.items()
            if isinstance(distribution, FloatDistribution)
        }
        while True:
            tpe = TPESampler(n_startup_trials=0, seed=rng.randrange(2**31))
            given = tpe.sample_relative(study, trial, dict(sizes))
            yield self.space.suggest(_Estimated(self.space, rng, given))


@dataclass(frozen=True)
class _Estimated:
    """Draws operations at random and takes sizes from the estimator."""

    space: Space
    rng: random.Random
    sizes: Mapping[str, float]

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return self.space.draw(name, choices, self.rng)

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return self.sizes[name]
