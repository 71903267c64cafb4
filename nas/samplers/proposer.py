"""The interface of all samplers: they propose whole architectures, given the trials so far."""

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from math import isfinite
from typing import Any, ClassVar

from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from nas.study.ledger import Observation, history
from search_spaces.architecture import Architecture
from search_spaces.equivalence import function_key
from search_spaces.errors import UserError
from search_spaces.spaces import GRAPHS, Space

# What an architecture is expected to be worth before any evaluation; higher is better.
ZeroCostProxy = Callable[[Architecture], float]

# Proposals that may compute what a trial computes before neighbours of the trials are looked at one by one.
MAX_PROPOSALS = 30


class SamplerError(UserError, ValueError):
    """A sampler that maximises one score is asked to serve several objectives."""


class Proposer(BaseSampler):
    """A sampler of whole architectures; subclasses implement `propose`.

    A proposal depends on the seed, the proxy, the number of proposals before it and the trials of the study alone, so a
    resumed search proposes what an uninterrupted one would have proposed. No function is proposed twice while another
    one can be found. Optuna is given the choices that spell the architecture (`Space.choices`).

    Args:
        proxy: a subclass may learn from the trials how well it predicts scores.
    """

    # The numbers of objectives of the studies that it is for.
    n_objectives: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self, space: Space, seed: int, proxy: ZeroCostProxy | None = None) -> None:
        self.space = space
        self.seed = seed
        self.proxy = proxy
        self._current: tuple[int, dict[str, str | float]] = (-1, {})
        self._in_budget: dict[Architecture, bool] = {}

    @abstractmethod
    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        """Yields members of the space, at least one, the best proposal first.

        The first one is taken that computes what no trial computes; the iterator is not advanced further.

        Args:
            observations: all trials that are running or have ended, in order.
            rng: the source of all randomness of this proposal.
        """

    def proposals(
        self, study: Study, trial: FrozenTrial, observations: list[Observation], rng: random.Random
    ) -> Iterator[Architecture]:
        """As `propose`; overridden where one of Optuna's samplers, which need the study, takes part."""
        return self.propose(observations, rng)

    def informative(self, observations: list[Observation]) -> list[Observation]:
        """The trials to learn from: neither those outside the budget, such as the base model, nor those with an
        infinite score.
        """
        return [
            observation
            for observation in observations
            if self._keeps_budget(observation.architecture) and all(map(isfinite, observation.values or ()))
        ]

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if len(study.directions) > max(self.n_objectives):
            name = type(self).__name__
            raise SamplerError(f"{name} maximises one score, and this study has {len(study.directions)} objectives")

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        seed = f"{self.seed}/{trial.number}"
        if self._current[0] != trial.number:
            rng = random.Random(seed)
            observations = history(study)
            architecture = self._first_new(self.proposals(study, trial, observations, rng), observations, rng)
            self._current = (trial.number, self.space.choices(architecture))
        if param_name not in self._current[1]:
            # Choices that were fixed when the trial was enqueued may lead to others than the proposal's.
            assert isinstance(param_distribution, CategoricalDistribution)
            choices = [str(choice) for choice in param_distribution.choices]
            return self.space.draw(param_name, choices, random.Random(f"{seed}/{param_name}"))
        return self._current[1][param_name]

    def _keeps_budget(self, architecture: Architecture) -> bool:
        if architecture not in self._in_budget:
            self._in_budget[architecture] = self.space.keeps_budget(architecture)
        return self._in_budget[architecture]

    def _first_new(
        self, proposals: Iterator[Architecture], observations: list[Observation], rng: random.Random
    ) -> Architecture:
        """The first proposal that computes what no trial computes, else such a member near the trials, else the first
        proposal.
        """
        known = {observation.key for observation in observations}
        first = None
        for architecture in islice(proposals, MAX_PROPOSALS):
            if function_key(architecture) not in known:
                return architecture
            first = first or architecture
        assert first is not None  # the promise of `propose`
        reached = {observation.architecture for observation in observations}
        if GRAPHS not in self.space.vary and sum(member in self.space for member in reached) >= self.space.size_count():
            return first  # the space is exhausted
        to_expand = [observation.architecture for observation in observations]
        rng.shuffle(to_expand)
        while to_expand:
            for neighbour in self.space.neighbours(to_expand.pop(), rng):
                if function_key(neighbour) not in known:
                    return neighbour
                if neighbour not in reached:
                    reached.add(neighbour)
                    to_expand.append(neighbour)
        return first
