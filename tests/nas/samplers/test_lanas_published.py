"""The published LaNAS: its splits, bounds and phases, and that proposals are random members of the chosen leaf."""

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import log, log2, sqrt
from statistics import mean

import numpy as np
import pytest
from optuna.trial import TrialState

from nas.samplers.encoding import encode, widths
from nas.samplers.lanas_published import DRAWS, HEIGHT, PublishedLaNAS, Regression, path_to_leaf
from nas.samplers.regions import Path, Region
from nas.study.ledger import Observation
from search_spaces import Architecture, Base, Space
from search_spaces.equivalence import function_key

BASE = Base(depth=3, width=24, heads=4, inner=64, vocabulary=50, positions=20)
SPACE = Space(BASE, {"stack": (1, 2), "expansion": tuple(Fraction(1, n) for n in (1, 2, 4, 16))}, 1, 10**9)


def problem(count: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features, and scores that are a linear function of them with noise."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, width))
    return features, features @ rng.normal(size=width) + rng.normal(0, 0.3, count) + 5


@pytest.mark.parametrize(("count", "width"), [(40, 3), (12, 11), (10, 30)])
def test_a_node_is_split_by_the_regression_of_the_score(count: int, width: int) -> None:
    """Compared with the normal equations, or, with fewer trials than features, with the interpolation that has the
    smallest norm. The threshold is the mean of the predictions.
    """
    features, scores = problem(count, width)
    if count > width:
        with_bias = np.column_stack((features, np.ones(count)))
        solution = np.linalg.solve(with_bias.T @ with_bias, with_bias.T @ scores)
        weights, bias = solution[:-1], solution[-1]
    else:
        centered = features - features.mean(axis=0)
        # One of the centered trials depends on the others.
        weights = centered[1:].T @ np.linalg.solve(centered[1:] @ centered[1:].T, (scores - scores.mean())[1:])
        bias = (scores - features @ weights).mean()
    threshold = (features @ weights + bias).mean()
    unseen = np.random.default_rng(1).normal(size=(200, width))
    root, child, *_ = path_to_leaf(features, scores, count, 1, 0.0)
    assert child.has(unseen).tolist() == ((unseen @ weights + bias > threshold) == child.good).tolist()
    # Those that are learned from are on the side of their own scores, whatever is predicted for them.
    assert child.good and set(child.rows) == {row for row in root.rows if scores[row] >= mean(scores)}
    assert threshold == pytest.approx(mean(scores))
    regression = child.classifier
    assert regression is not None
    assert regression.predict(unseen) + threshold == pytest.approx(unseen @ weights + bias)


def test_directions_of_rounding_errors_are_ignored() -> None:
    """Columns that are equal up to rounding share their weight; none is explained by the difference."""
    features, scores = problem(30, 2)
    noise = np.random.default_rng(2).normal(0, 1e-8, 30)
    doubled = np.column_stack((features, features[:, 0] + noise))
    expected = Regression.fit(features, scores).weights
    assert Regression.fit(doubled, scores).weights == pytest.approx(
        [expected[0] / 2, expected[1], expected[0] / 2], rel=1e-3
    )


def two_sides(later: Sequence[tuple[float, float]] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Five trials on the bad side (-1) with a score of 0.5 and five on the good side (1) with 0.6, and later ones, each
    with a side and a score.
    """
    sides = [-1.0] * 5 + [1.0] * 5 + [side for side, _ in later]
    return np.array(sides)[:, None], np.array([0.5] * 5 + [0.6] * 5 + [score for _, score in later])


@pytest.mark.parametrize("score", [float("nan"), 0.41])
@pytest.mark.parametrize("exploration", [0.0, 0.1, 0.3])
def test_the_side_is_that_of_the_higher_bound(exploration: float, score: float) -> None:
    """Compared with the formula, for any number of later trials on the good side: running ones are visits, and the
    scores of others change the mean.
    """
    chosen = []
    for later in range(25):
        features, scores = two_sides([(1.0, score)] * later)
        _, child, *deeper = path_to_leaf(features, scores, 10, 1, exploration)
        mean_of_good = 0.6 if np.isnan(score) else (5 * 0.6 + later * score) / (5 + later)
        good = mean_of_good + 2 * exploration * sqrt(2 * log(10 + later) / (5 + later))
        bad = 0.5 + 2 * exploration * sqrt(2 * log(10 + later) / 5)
        assert child.good == (good > bad)
        assert not deeper  # all scores on a side are equal
        chosen.append(child.good)
    # Without exploration only lower scores turn the search.
    assert set(chosen) == ({True} if exploration == 0.0 and np.isnan(score) else {True, False})


def test_later_trials_are_on_the_side_that_is_predicted() -> None:
    features, scores = two_sides([(-1.0, 0.9), (1.0, 0.1), (1.0, float("nan"))])
    _, child = path_to_leaf(features, scores, 10, 1, 0.0)
    assert child.good == (mean([0.6] * 5 + [0.1]) > mean([0.5] * 5 + [0.9]))
    assert child.rows.tolist() == [0, 1, 2, 3, 4, 10]


def test_trials_without_a_score_are_not_learned_from() -> None:
    features, scores = problem(30, 4)
    failed = np.full(30, np.nan)
    mixed = np.stack((failed, scores), axis=1).ravel()
    rows = np.repeat(features, 2, axis=0)
    clean, other = (path_to_leaf(*given, 20, 1, 0.0)[1].classifier for given in ((features, scores), (rows, mixed)))
    assert isinstance(clean, Regression) and isinstance(other, Regression)
    assert clean.weights == pytest.approx(other.weights)


def test_the_tree_has_its_height_and_its_leaves_their_size() -> None:
    features, scores = problem(500, 4)
    path = path_to_leaf(features, scores, 500, 1, 0.0)
    assert len(path) == HEIGHT
    assert all(set(child.rows) < set(parent.rows) for parent, child in pairwise(path))
    for leaf_size in (1, 20, 60, 300):
        path = path_to_leaf(features, scores, 500, leaf_size, 0.0)
        assert all(min(len(child.rows), len(parent.rows) - len(child.rows)) >= leaf_size
                   for parent, child in pairwise(path))  # fmt: skip
    assert len(path) == 1
    assert len(path_to_leaf(features, np.full(500, 0.1), 500, 1, 0.0)) == 1


def wanted(architecture: Architecture) -> float:
    """A score that rewards many channels in the first layer and few in the others."""
    first, *others = (log2(ffn.inner(BASE)) for ffn in architecture.ffns)
    return first - sum(others)


def trials(count: int, state: TrialState = TrialState.COMPLETE, first_seed: int = 0) -> list[Observation]:
    members = [SPACE.sample(random.Random(first_seed + seed)) for seed in range(count)]
    values = [(wanted(one),) if state == TrialState.COMPLETE else None for one in members]
    return [Observation(one, function_key(one), state, value) for one, value in zip(members, values, strict=True)]


class Recording(PublishedLaNAS):
    """Remembers the paths to the leaves that it chose."""

    def members(self, path: Path, known: set[Architecture], rng: random.Random) -> list[Architecture]:
        self.path = path
        return super().members(path, known, rng)


def test_a_random_member_of_the_leaf_is_proposed() -> None:
    """It is the first new one in the leaf among random members."""
    observations = trials(40)
    known = {one.architecture for one in observations}
    sampler = Recording(SPACE, 0)

    def in_leaf(member: Architecture) -> bool:
        features = encode([member], widths(SPACE))
        return all(region.has(features)[0] for region in sampler.path)

    for seed in range(5):
        proposed = next(sampler.propose(observations, random.Random(seed)))
        assert len(sampler.path) > 2
        rng = random.Random(seed)
        drawn = (SPACE.sample(rng) for _ in range(DRAWS))
        assert proposed == next(member for member in drawn if member not in known and in_leaf(member))


def test_the_first_proposals_are_random() -> None:
    sampler = PublishedLaNAS(SPACE, 0, first_random=12)
    for observations, learns in (
        (trials(11), False),
        (trials(12), True),
        ([*trials(11), *trials(20, TrialState.RUNNING, 100), *trials(5, TrialState.FAIL, 200)], False),
        (trials(30, TrialState.PRUNED), False),
    ):
        proposed = [next(sampler.propose(observations, random.Random(seed))) for seed in range(12)]
        assert (proposed != [SPACE.sample(random.Random(seed)) for seed in range(12)]) == learns


def test_the_tree_is_learned_again_after_so_many_scores() -> None:
    sampler = Recording(SPACE, 0, first_random=10, refit_every=6)

    def root(observations: list[Observation]) -> bytes:
        next(sampler.propose(observations, random.Random(0)))
        classifier = sampler.path[1].classifier
        assert isinstance(classifier, Regression)
        return classifier.center.tobytes() + classifier.weights.tobytes()

    roots = [root(trials(count)) for count in range(10, 29)]
    assert [one != other for one, other in pairwise(roots)] == [count % 6 == 4 for count in range(11, 29)]
    # Running trials do not count.
    assert root([*trials(15), *trials(20, TrialState.RUNNING, 100)]) == roots[0]


def test_a_leaf_that_no_member_is_in() -> None:
    """The deepest node that has members takes its place."""
    features = encode([one.architecture for one in trials(20)], widths(SPACE)).astype(float)
    nothing = Regression(np.zeros(features.shape[1]), np.zeros(features.shape[1]))
    half = Regression.fit(features, np.array([wanted(one.architecture) for one in trials(20)]))
    root, rows = Region(np.arange(20)), np.arange(5)
    path = [root, Region(rows, half), Region(rows, nothing), Region(rows, half, good=False)]
    found = PublishedLaNAS(SPACE, 0).members(path, set(), random.Random(0))
    assert 0.2 * DRAWS < len(found) < 0.8 * DRAWS
    assert all(half.predict(encode([one], widths(SPACE)))[0] > 0 for one in found)


@pytest.mark.parametrize(("exploration", "parts"), [(0.0, False), (3.0, True)])
def test_running_trials_turn_the_search_to_other_leaves(exploration: float, parts: bool) -> None:
    sampler = Recording(SPACE, 0, exploration=exploration)
    observations, leaves = trials(30), set()
    for seed in range(24):
        proposed = next(sampler.propose(observations, random.Random(seed)))
        observations.append(Observation(proposed, function_key(proposed), TrialState.RUNNING, None))
        leaves.add(tuple(region.good for region in sampler.path))
    assert (len(leaves) > 1) == parts


def test_the_proxy_is_not_used() -> None:
    with_proxy, alone = (
        [next(PublishedLaNAS(SPACE, 0, proxy).propose(trials(30), random.Random(seed))) for seed in range(5)]
        for proxy in (wanted, None)
    )
    assert with_proxy == alone
