"""The base class of all samplers, which propose whole architectures given the trials so far."""

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from math import isfinite
from typing import Any, ClassVar

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from foundation.errors import UserError
from nas.study.ledger import Observation, history
from search_spaces.architecture import Architecture
from search_spaces.equivalence import function_key
from search_spaces.neighbourhood import neighbours
from search_spaces.spaces import GRAPHS, Space

# An estimate of how good an architecture is that needs no evaluation; higher is better.
ZeroCostProxy = Callable[[Architecture], float]

# After this many proposals that are duplicates of trials, the neighbours of the trials are tried one by one.
MAX_PROPOSALS = 30


class SamplerError(UserError, ValueError):
    """A sampler that maximizes a single score is used in a study with several objectives."""


class Proposer(BaseSampler):
    """A sampler of whole architectures; subclasses implement `propose`.

    A proposal depends only on the seed, the proxy, the number of the trial and the trials of the study, so a resumed
    search proposes what an uninterrupted one would have proposed. No function is proposed twice as long as a new one
    can be found. Optuna receives the architecture as the choices of the space that lead to it (`Space.choices`).

    Args:
        proxy: subclasses may use it, for example as a feature from which scores are predicted.
    """

    # The numbers of objectives that the sampler supports.
    n_objectives: ClassVar[tuple[int, ...]] = (1,)
    # The names of the keyword arguments that a stage may give, see `nas.config.schema.SAMPLER_SETTINGS`.
    settings: ClassVar[tuple[str, ...]] = ()
    # The number of trials of the search that are in another study, which the random numbers of a proposal depend on.
    before: int = 0

    def __init__(self, space: Space, seed: int, proxy: ZeroCostProxy | None = None) -> None:
        self.space = space
        self.seed = seed
        self.proxy = proxy
        self._current: tuple[int, dict[str, str | float]] = (-1, {})
        self._in_budget: dict[Architecture, bool] = {}

    @abstractmethod
    def propose(self, observations: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        """Yield at least one member of the space, the best proposal first.

        The first member that is no duplicate of a trial is used, and the iterator is not advanced further.

        Args:
            observations: all trials that are running or have ended, in order.
            rng: the source of all randomness of this proposal.
        """

    def proposals(
        self, study: Study, trial: FrozenTrial, observations: list[Observation], rng: random.Random
    ) -> Iterator[Architecture]:
        """Like `propose`, for subclasses that use one of Optuna's own samplers and therefore need the study."""
        return self.propose(observations, rng)

    def informative(self, observations: list[Observation]) -> list[Observation]:
        """The trials to learn from: those within the budget, except for trials with an infinite score."""
        return [
            observation
            for observation in observations
            if self._within_budget(observation.architecture) and all(map(isfinite, observation.values or ()))
        ]

    def scored(self, observations: list[Observation]) -> list[tuple[float, Architecture]]:
        """The scores of those of the informative trials that have one, with their architectures."""
        return [(of.values[0], of.architecture) for of in self.informative(observations) if of.values]

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if len(study.directions) > max(self.n_objectives):
            name = type(self).__name__
            raise SamplerError(f"{name} maximizes one score, and this study has {len(study.directions)} objectives")

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if self._current[0] != trial.number:
            rng = random.Random(f"{self.seed}/{self.before + trial.number}")
            observations = history(study)
            architecture = self._first_new(self.proposals(study, trial, observations, rng), observations, rng)
            self._current = (trial.number, self.space.choices(architecture))
        return self._current[1][param_name]

    def _within_budget(self, architecture: Architecture) -> bool:
        if architecture not in self._in_budget:
            self._in_budget[architecture] = self.space.within_budget(architecture)
        return self._in_budget[architecture]

    def _first_new(
        self, proposals: Iterator[Architecture], observations: list[Observation], rng: random.Random
    ) -> Architecture:
        """The first proposal that is no duplicate of a trial; if there is none, a member near the trials that is no
        duplicate; if there is none either, the first proposal.
        """
        known = {observation.key for observation in observations}
        first = None
        for architecture in islice(proposals, MAX_PROPOSALS):
            if function_key(architecture) not in known:
                return architecture
            first = first or architecture
        assert first is not None  # `propose` yields at least one
        reached = {observation.architecture for observation in observations}
        if GRAPHS not in self.space.vary and sum(member in self.space for member in reached) >= self.space.size_count():
            return first  # the space is exhausted
        to_expand = [observation.architecture for observation in observations]
        rng.shuffle(to_expand)
        while to_expand:
            for neighbour in neighbours(self.space, to_expand.pop(), rng):
                if function_key(neighbour) not in known:
                    return neighbour
                if neighbour not in reached:
                    reached.add(neighbour)
                    to_expand.append(neighbour)
        return first
