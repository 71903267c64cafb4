"""Optuna's tree-structured Parzen estimator (TPE) over the sizes."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import optuna
from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from nas.samplers.random import RandomSampler
from nas.study.description import choices_of
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.spelling import RandomTrial

# Proposals are random until this many trials are complete.
N_STARTUP_TRIALS = 8
# A size is a position among the sizes that the budget still allows (`Space.suggest`).
SIZE = FloatDistribution(0.0, 1.0)


class TPE(RandomSampler):
    """Optuna's `TPESampler`, jointly over all sizes, once `N_STARTUP_TRIALS` trials are complete. Operations are drawn
    at random, as in `RandomSampler`.

    The estimator is not used for operations because it prefers choices that no trial has tried: with eleven choices per
    segment and tens of trials it would edit nearly every segment of every layer at once.
    """

    def proposals(
        self, study: Study, trial: FrozenTrial, observations: list[Observation], rng: random.Random
    ) -> Iterator[Architecture]:
        ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        if sum(trial.state == TrialState.COMPLETE for trial in ended) < N_STARTUP_TRIALS:
            yield from self.propose(observations, rng)
        trials = [_with_sizes_alone(trial) for trial in ended]
        # A temporary study of the sizes alone, because the estimator records what it draws in its study.
        seed = rng.randrange(2**31)
        sampler = TPESampler(n_startup_trials=0, multivariate=True, constant_liar=False, seed=seed)
        sizes = optuna.create_study(directions=study.directions, sampler=sampler)
        sizes.add_trials([trial for trial in trials if trial.params])
        distributions = {name: distribution for trial in trials for name, distribution in trial.distributions.items()}
        while True:
            yield self.space.suggest(_Estimated(self.space.draw, rng, sizes.ask(distributions).params))


def _with_sizes_alone(trial: FrozenTrial) -> FrozenTrial:
    """A copy of an ended trial whose parameters are its sizes; it has none if its architecture was enqueued."""
    choices = choices_of(trial)
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
class _Estimated(RandomTrial):
    """The choices of an architecture: operations are drawn at random, sizes come from the estimator."""

    sizes: Mapping[str, float]

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return self.sizes[name]
