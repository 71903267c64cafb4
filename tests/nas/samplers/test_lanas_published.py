"""LaNAS as published: regressions, bounds and the way down the tree, against computations by hand."""

import random
from math import inf, log, log2, sqrt
from pathlib import Path

import numpy as np
import pytest
from optuna.trial import TrialState
from sklearn.linear_model import LinearRegression

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.preparation.prepare import prepare
from nas.samplers.lanas import LaNAS, descend
from nas.samplers.lanas_published import HEIGHT, LaNASPublished, Split
from nas.stages import plan, sampler_of
from nas.study.ledger import Observation
from search_spaces.architecture import Architecture
from tests.nas.samplers.test_samplers import SPACE
from tests.nas.tiny_study import TinyStudy


def sampler(**settings: float) -> LaNASPublished:
    return LaNASPublished(SPACE, 0, **settings)  # type: ignore[arg-type]


def data(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 3))
    return features, features @ [0.3, -0.2, 0.1] + 0.05 * rng.normal(size=count) + 0.7


def test_a_split_is_a_least_squares_regression_at_the_mean() -> None:
    features, scores = data(40)
    split = Split.fit(features, scores)
    reference = LinearRegression().fit(features, scores)
    np.testing.assert_allclose(split.weights[:-1], reference.coef_, rtol=1e-8)
    assert split.mean == pytest.approx(scores.mean())
    new, _ = data(200, seed=1)
    assert np.array_equal(split.good(new), reference.predict(new) >= scores.mean())


def test_the_bound_is_equation_3() -> None:
    scores = np.array([0.5, 0.7, 0.9])
    assert sampler(exploration=0.2).bound(scores, 12) == pytest.approx(0.7 + 2 * 0.2 * sqrt(2 * log(12) / 3))
    assert sampler().bound(np.array([]), 12) == inf


def test_the_way_down_the_tree() -> None:
    features, scores = data(10)
    above = scores >= scores.mean()
    # Without exploration the better side is chosen at every node.
    path = sampler(exploration=0.0).descend(features, scores)
    assert all(good for _, good in path) and 1 <= len(path) <= HEIGHT - 1
    assert path[0][0].mean == pytest.approx(scores.mean())
    assert path[1][0].mean == pytest.approx(scores[above].mean())
    # With very much exploration the side with fewer trials is chosen.
    _, chosen = sampler(exploration=1e6).descend(features, scores)[0]
    assert chosen == (above.sum() < (~above).sum()) or above.sum() == (~above).sum()
    # A leaf has at least `leaf_size` trials on either side.
    assert not sampler(leaf_size=6).descend(features, scores)
    assert not sampler().descend(features, np.full(10, 0.5))
    many = data(400)
    assert len(sampler(exploration=0.0, first_random=400).descend(*many)) == HEIGHT - 1


def test_the_tree_is_learned_again_at_intervals() -> None:
    features, scores = data(50)
    own = sampler(exploration=0.0)
    means = [own.descend(features[:count], scores[:count])[0][0].mean for count in (10, 29, 30, 49, 50)]
    assert means == pytest.approx([scores[:learned].mean() for learned in (10, 10, 30, 30, 50)])
    # In between, trials count for the side on which the regression puts them, whatever their score.
    later = np.concatenate([scores[:10], np.full(19, -50.0)])
    split, good = own.descend(features[:29], later)[0]
    sides = np.concatenate([scores[:10] >= split.mean, split.good(features[10:29])])
    assert later[sides == good].mean() >= later[sides != good].mean()


def test_proposals_are_members_of_the_leaf() -> None:
    rng = random.Random(0)
    observations = []
    for _ in range(12):
        member = SPACE.sample(rng)
        total = sum(genes.stack * genes.expansion for genes in member.layers)
        observations.append(Observation(member, "", TrialState.COMPLETE, (float(total),)))
    own = sampler(exploration=0.0)
    path = own.descend(
        own.features([observation.architecture for observation in observations]),
        np.array([observation.values[0] for observation in observations if observation.values]),
    )
    proposals = own.propose(observations, random.Random(1))
    for _ in range(20):
        features = own.features([next(proposals)])
        assert all(split.good(features)[0] == good for split, good in path)
    # Before there are enough trials, proposals are random.
    few = own.propose(observations[:9], random.Random(1))
    assert next(few) == next(super(LaNASPublished, own).propose(observations[:9], random.Random(1)))


def test_a_linear_score_is_followed() -> None:
    rng = random.Random(0)

    def total(member: Architecture) -> float:
        return sum(log2(genes.stack * genes.inner(member.base)) for genes in member.layers)

    observations: list[Observation] = []
    own = sampler()
    for _ in range(50):
        member = next(own.propose(observations, rng))
        observations.append(Observation(member, "", TrialState.COMPLETE, (total(member),)))
    drawn = [total(SPACE.sample(rng)) for _ in range(200)]
    late = [observation.values[0] for observation in observations[30:] if observation.values]
    assert np.mean(late) > np.mean(drawn) + np.std(drawn)


def test_settings_of_a_stage_reach_the_sampler(tiny_study: TinyStudy, tmp_path: Path) -> None:
    given = {"exploration": 0.3, "leaf_size": 2, "first_random": 4, "refit_every": 3}
    lines = "".join(f"{name} = {value}\n" for name, value in given.items())
    for name, kind in (("lanas", LaNAS), ("lanas-published", LaNASPublished)):
        stage = ('[stage1]\ntrials = 6\nsampler = "random"\n', f'[stage1]\ntrials = 6\nsampler = "{name}"\n')
        preset = tiny_study.variant(tmp_path / f"{name}.toml", stage)
        preset.write_text(f"{preset.read_text()}\n[stage1.lanas]\n{lines}")
        config = load_config(str(preset))
        workspace = prepare(config, "cpu")
        own = sampler_of(plan(config, workspace, "1", None, ()), workspace)
        assert type(own) is kind
        first = own.n_startup_trials if isinstance(own, LaNAS) else own.first_random  # type: ignore[attr-defined]
        found = own.exploration, own.leaf_size, first, own.refit_every  # type: ignore[attr-defined]
        assert found == tuple(given.values())
    for changes, message in (
        ({"stage2.lanas.exploration": 0.5}, "stage2.lanas: evolution has no such settings; choose lanas or"),
        ({"stage1.sampler": "lanas", "stage1.lanas.leaf_size": 0}, "stage1.lanas.leaf_size"),
        ({"stage1.sampler": "lanas", "stage1.lanas.exploration": -1.0}, "stage1.lanas.exploration"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_config(str(tiny_study.preset), changes)


def test_an_interval_of_lanas() -> None:
    features, values = data(30)
    every = descend(features, values, 5, 1.0, 30)
    by_default = descend(features, values, 5, 1.0)
    assert not np.array_equal(every[1].has(features), by_default[1].has(features))
