"""The one interface of samplers that propose whole architectures, given all that was tried."""

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

# A guess at what an architecture is worth, before any evaluation; higher is better.
ZeroCostProxy = Callable[[Architecture], float]

# Proposals in a row that may be known functions before neighbours of what was tried are looked at one by one.
TRIES = 30


class SamplerError(UserError, ValueError):
    """A sampler that maximises one score is asked to serve several objectives."""


class Proposer(BaseSampler):
    """A sampler of whole architectures; subclasses say what comes next.

    A proposal depends on the seed, the hint, the number of proposals before it and the trials of the study alone, so a
    continued search proposes what an uninterrupted one would have proposed. No function is proposed twice while there
    is another one in reach. Optuna sees the choices that spell the architecture.

    Args:
        hint: a subclass may learn from the trials how much it tells.
    """

    # Whether it can serve a study of several objectives.
    several: ClassVar[bool] = False

    def __init__(self, space: Space, seed: int, hint: ZeroCostProxy | None = None) -> None:
        self.space = space
        self.seed = seed
        self.hint = hint
        self._current: tuple[int, dict[str, str | float]] = (-1, {})
        self._inside: dict[Architecture, bool] = {}

    @abstractmethod
    def propose(self, tried: list[Observation], rng: random.Random) -> Iterator[Architecture]:
        """Members of the space, at least one, the best proposal first.

        The first one is taken that computes what no trial computed; not more are asked for than that needs.

        Args:
            tried: all trials that are running or have ended, in order.
            rng: all randomness of this proposal.
        """

    def proposals(
        self, study: Study, trial: FrozenTrial, tried: list[Observation], rng: random.Random
    ) -> Iterator[Architecture]:
        """As `propose`; overridden where one of Optuna's samplers has a say, which needs the study."""
        return self.propose(tried, rng)

    def evidence(self, tried: list[Observation]) -> list[Observation]:
        """The trials that say something about the space: not those outside the budget, such as the base model, nor
        those with an infinite score.
        """
        return [one for one in tried if self._keeps_budget(one.architecture) and all(map(isfinite, one.values or ()))]

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if len(study.directions) > 1 and not self.several:
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
            tried = history(study)
            architecture = self._first_new(self.proposals(study, trial, tried, rng), tried, rng)
            self._current = (trial.number, self.space.choices(architecture))
        if param_name not in self._current[1]:
            # Choices that were fixed when the trial was enqueued may ask for others than the proposal's.
            assert isinstance(param_distribution, CategoricalDistribution)
            choices = [str(choice) for choice in param_distribution.choices]
            return self.space.draw(param_name, choices, random.Random(f"{seed}/{param_name}"))
        return self._current[1][param_name]

    def _keeps_budget(self, architecture: Architecture) -> bool:
        if architecture not in self._inside:
            self._inside[architecture] = self.space.keeps_budget(architecture)
        return self._inside[architecture]

    def _first_new(
        self, proposals: Iterator[Architecture], tried: list[Observation], rng: random.Random
    ) -> Architecture:
        """The first proposal that computes what no trial does, else such a member near the trials, else any one."""
        known = {one.key for one in tried}
        first = None
        for architecture in islice(proposals, TRIES):
            if function_key(architecture) not in known:
                return architecture
            first = first or architecture
        assert first is not None  # the promise of `propose`
        reached = {one.architecture for one in tried}
        if GRAPHS not in self.space.vary and sum(one in self.space for one in reached) >= self.space.size_count():
            return first  # the space is exhausted
        waiting = [one.architecture for one in tried]
        rng.shuffle(waiting)
        while waiting:
            for neighbour in self.space.neighbours(waiting.pop(), rng):
                if function_key(neighbour) not in known:
                    return neighbour
                if neighbour not in reached:
                    reached.add(neighbour)
                    waiting.append(neighbour)
        return first
