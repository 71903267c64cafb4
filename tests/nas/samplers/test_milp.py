"""The MILP allocation with learned weights."""

import random

import numpy as np
import pytest
from optuna.trial import TrialState

from nas.samplers import WeightedAllocation
from nas.samplers.milp import DEVIATION, drawn_weights
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from search_spaces.equivalence import function_key
from search_spaces.neighbourhood import neighbours
from tests.nas.samplers.test_samplers import SPACE


def observation(architecture: Architecture, score: float | None) -> Observation:
    state = TrialState.RUNNING if score is None else TrialState.COMPLETE
    return Observation(architecture, function_key(architecture), state, None if score is None else (score,))


def test_weights_are_learned() -> None:
    rng = np.random.default_rng(0)
    losses = rng.uniform(0.5, 1.5, (200, 4))
    true = np.array([0.5, 1.0, 1.5, 1.0])
    targets = 0.01 * losses @ true
    draws = np.array([next(drawn_weights(losses, targets, rng)) for _ in range(100)])
    # Up to the scale: that is the best one for weights of 1.
    mean = draws.mean(axis=0)
    assert mean / mean.mean() == pytest.approx(true / true.mean(), abs=0.1)
    assert draws.std(axis=0).max() < 0.1


def test_weights_of_parts_that_cost_nothing_are_the_prior_s() -> None:
    losses = np.array([[0.2, 0.0], [0.3, 0.0]])
    rng = np.random.default_rng(1)
    draws = np.array([next(drawn_weights(losses, np.array([0.02, 0.03]), rng)) for _ in range(2000)])
    assert draws[:, 1].mean() == pytest.approx(1, abs=0.03)
    assert draws[:, 1].std() == pytest.approx(DEVIATION, abs=0.03)
    assert draws.min() > 0


def test_later_draws_are_farther_away() -> None:
    losses, targets = np.ones((3, 2)), np.full(3, 0.1)
    spreads = np.array([[*drawn_weights(losses, targets, np.random.default_rng(seed))] for seed in range(300)])
    assert (np.diff(spreads.std(axis=(0, 2))) > 0).all()


def test_what_is_proposed() -> None:
    """Two of three proposals are allocations for weights that follow from the trials nearby, the third a neighbor."""
    rng = random.Random(0)
    members = [SPACE.sample(rng) for _ in range(3)]
    asked: list[np.ndarray] = []

    def allocate(weights: np.ndarray) -> Architecture | None:
        asked.append(weights)
        return None if len(asked) == 1 else members[2]

    # The third trial is far from the others, and says nothing.
    table = {members[0]: [0.1, 0.1], members[1]: [0.1, 0.05], members[2]: [5.0, 5.0]}
    sampler = WeightedAllocation(SPACE, 0, losses=lambda one: np.array(table[one]), allocate=allocate)
    scored = [observation(members[0], 0.8), observation(members[1], 0.85), observation(members[2], 0.0)]
    running = observation(members[2], None)
    proposals = sampler.propose([*scored, running], random.Random(3))
    assert next(proposals) == members[2] and len(asked) == 2
    again: list[np.ndarray] = []
    near = WeightedAllocation(SPACE, 0, losses=sampler.losses, allocate=lambda weights: again.append(weights))
    first = next(near.propose([*scored[:2], running, running], random.Random(3)))
    assert np.array_equal(again[:2], asked)
    assert first in set(neighbours(SPACE, members[1], random.Random(0)))
    third = next(sampler.propose(scored, random.Random(3)))
    assert len(asked) == 2
    assert third in set(neighbours(SPACE, members[1], random.Random(0)))


def test_the_base_model_which_loses_nothing_says_nothing() -> None:
    whole, other = (SPACE.sample(random.Random(seed)) for seed in (0, 1))
    for observations in ([observation(whole, 1.0)], [observation(whole, 1.0), observation(other, 0.8)]):
        asked: list[np.ndarray] = []
        sampler = WeightedAllocation(
            SPACE,
            0,
            losses=lambda one: np.array([0.0, 0.0] if one == whole else [0.1, 0.05]),
            allocate=lambda weights, asked=asked: asked.append(weights),
        )
        next(sampler.propose(observations, random.Random(3)))
        assert bool(asked) == (len(observations) > 1) and np.isfinite(asked).all()
