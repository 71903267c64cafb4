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
from nas.study.attributes import choices_of
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

# Complete trials before the first proposal that is not random.
N_STARTUP_TRIALS = 8
# Of every size, which is a position among those that are left of the budget (`Space.suggest`).
SIZE = FloatDistribution(0.0, 1.0)


class TPE(RandomSampler):
    """`TPESampler` for all sizes together once `N_STARTUP_TRIALS` trials are complete; operations are drawn as
    `RandomSampler` does.

    Over the operations Optuna's estimator prefers what other trials have not tried, and with a segment's eleven choices
    and tens of trials that edits nearly every segment of every layer at once.
    """

    def proposals(
        self, study: Study, trial: FrozenTrial, observations: list[Observation], rng: random.Random
    ) -> Iterator[Architecture]:
        ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        if sum(trial.state == TrialState.COMPLETE for trial in ended) < N_STARTUP_TRIALS:
            yield from self.propose(observations, rng)
        trials = [_with_sizes_alone(trial) for trial in ended]
        # In a study of the sizes alone, since the estimator writes down what it draws.
        seed = rng.randrange(2**31)
        sampler = TPESampler(n_startup_trials=0, multivariate=True, constant_liar=False, seed=seed)
        sizes = optuna.create_study(directions=study.directions, sampler=sampler)
        sizes.add_trials([trial for trial in trials if trial.params])
        distributions = {name: distribution for trial in trials for name, distribution in trial.distributions.items()}
        while True:
            yield self.space.suggest(_Estimated(self.space, rng, sizes.ask(distributions).params))


def _with_sizes_alone(trial: FrozenTrial) -> FrozenTrial:
    """A trial that ended with its sizes for parameters; without any where its architecture was enqueued."""
    choices = choices_of(trial.user_attrs, trial.params)
    sizes = {name: choice for name, choice in choices.items() if not isinstance(choice, str)}
    distributions: dict[str, BaseDistribution] = dict.fromkeys(sizes, SIZE)
    return optuna.create_trial(
        state=trial.state,
        values=trial.values,
        params=sizes,
        distributions=distributions,
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
