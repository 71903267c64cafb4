"""Optuna's tree-structured Parzen estimator over the sizes, after a start of random draws."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from nas.samplers.random import RandomSampler
from nas.study.ledger import Observation
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
        self, study: Study, trial: FrozenTrial, tried: list[Observation], rng: random.Random
    ) -> Iterator[Architecture]:
        ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        if sum(one.state == TrialState.COMPLETE for one in ended) < START:
            yield from self.propose(tried, rng)
        trials = [_sizes_of(one) for one in ended]
        # In a study of the sizes alone, since the estimator writes down what it draws.
        seed = rng.randrange(2**31)
        sampler = TPESampler(n_startup_trials=0, multivariate=True, constant_liar=False, seed=seed)
        sizes = optuna.create_study(directions=study.directions, sampler=sampler)
        sizes.add_trials([one for one in trials if one.params])
        distributions = {name: distribution for one in trials for name, distribution in one.distributions.items()}
        while True:
            yield self.space.suggest(_Estimated(self.space, rng, sizes.ask(distributions).params))


def _sizes_of(trial: FrozenTrial) -> FrozenTrial:
    """A trial that ended with the parameters of its sizes only; without any where its architecture was given."""
    floats: dict[str, BaseDistribution] = {
        name: one for name, one in trial.distributions.items() if isinstance(one, FloatDistribution)
    }
    return optuna.create_trial(
        state=trial.state,
        values=trial.values,
        params={name: trial.params[name] for name in floats},
        distributions=floats,
        intermediate_values=trial.intermediate_values,
    )


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
