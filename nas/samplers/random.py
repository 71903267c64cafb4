"""Independent draws from the space's own distribution."""

import random
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from nas.ledger import draw_index
from search_spaces.spaces import Space


class RandomSampler(BaseSampler):
    """Draws every gene by itself, operations mostly the base graph's (`Space.edit_rate`).

    A draw depends on the seed, the number of draws before it and the gene's name alone, so a continued search draws
    what an uninterrupted one would have drawn.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.seed = seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        rng = random.Random(f"{self.seed}/{draw_index(study, trial)}/{param_name}")
        if isinstance(param_distribution, CategoricalDistribution):
            return self.space.draw(param_name, [str(choice) for choice in param_distribution.choices], rng)
        assert isinstance(param_distribution, FloatDistribution)
        return rng.uniform(param_distribution.low, param_distribution.high)
