"""The parts of LaNAS, evolution and local search."""

import random
from collections.abc import Iterable
from fractions import Fraction
from itertools import islice, pairwise
from math import log, log2, sqrt

import numpy as np
import pytest
from optuna.trial import TrialState
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_info, threadpool_limits

from nas.samplers import SAMPLERS, ZeroCostProxy, evolution, local
from nas.samplers.encoding import FFN_GENES, encode, widths
from nas.samplers.lanas import (
    EXPLORATION,
    GROWTH,
    N_STARTUP_TRIALS,
    N_STARTUP_TRIALS_WITH_PROXY,
    PHASE,
    LaNAS,
    expected_improvement,
    fit,
    learned_trials,
    normalised,
    path_to_leaf,
    ranks,
)
from nas.samplers.regions import Path, within
from nas.study.ledger import Observation
from search_spaces import DENSE, FFN, GELU, Architecture, Base, Experts, FFNGraph, Space
from search_spaces.equivalence import function_key
from search_spaces.genes import BLOCK, DOUBLING, EXPERTS, HEAD_EXPERTS, OPERATION, PLACED, counted_operations
from search_spaces.operations import UNARY, Operation
from search_spaces.routing import ROUTINGS, RoutingKind
from tests.search_spaces.small_spaces import of_genes

BASE = Base(depth=2, width=24, heads=4, inner=64, vocabulary=50, positions=20)
EXPANSIONS = tuple(Fraction(1, n) for n in (1, 2, 4, 16))
SPACE = Space(BASE, {"stack": (1, 2), "expansion": EXPANSIONS}, 1, 10**9)
STEPS = widths(SPACE)


def observed(value: float | None, state: TrialState = TrialState.COMPLETE, seed: int = 0) -> Observation:
    architecture = SPACE.sample(random.Random(seed))
    return Observation(architecture, function_key(architecture), state, None if value is None else (value,))


def sized(*sizes: tuple[int, Fraction], graph: FFNGraph = GELU) -> Architecture:
    return Architecture.of_ffns(BASE, tuple(FFN(graph, stack, expansion) for stack, expansion in sizes))


def test_the_widths_of_a_space() -> None:
    assert STEPS == (2, 3, 4, 5, 6, 7)  # 4 to 128 channels; 8 are two blocks of 4
    assert widths(of_genes(SPACE, stack=(1,), expansion=(Fraction(1),))) == (6,)
    # 4 experts without shared channels have at most 16.
    assert widths(of_genes(SPACE, experts=(Experts(4),))) == (2, 3, 4, 5)
    assert widths(of_genes(SPACE, experts=(Experts(4), DENSE))) == STEPS


def test_sizes_are_encoded_as_far_as_they_differ() -> None:
    """The squared distance of two widths is DOUBLING² for each doubling between them, as in a Brownian motion."""
    one, other = sized((1, Fraction(1)), (1, Fraction(1))), sized((1, Fraction(1, 16)), (1, Fraction(1)))
    # Also between the space's widths, where baselines are: 3/8 of 64 are 24 channels.
    between = sized((1, Fraction(3, 8)), (1, Fraction(1)))
    rows = encode([one, between, other], STEPS)
    sizes = len(STEPS) - 1
    for a, b, doublings in ((0, 2, 4), (0, 1, log2(64 / 24)), (1, 2, log2(24 / 4))):
        difference = (rows[a] - rows[b])[:sizes]
        if b == 1 or a == 1:
            assert difference @ difference <= DOUBLING**2 * doublings + 1e-6
        else:
            assert difference @ difference == pytest.approx(DOUBLING**2 * doublings, rel=1e-6)
        assert (rows[a] == rows[b])[sizes:].all()


def test_blocks_and_operations_are_encoded() -> None:
    (plain,), (stacked,) = (
        encode([sized((1, Fraction(1, 2)), (1, Fraction(1)))], STEPS),
        encode([sized((2, Fraction(1, 4)), (1, Fraction(1)))], STEPS),
    )
    changed = np.flatnonzero(plain != stacked)
    assert (stacked - plain)[changed] == pytest.approx([BLOCK])  # the same channels in one block more

    tanh = FFNGraph.parse("tanh(project(gelu(expand(x))))")
    one = Architecture.of_ffns(BASE, (FFN(tanh, 1, Fraction(1, 2)), FFN(GELU, 1, Fraction(1))))
    (edited,) = encode([one], STEPS)
    changed = np.flatnonzero(plain != edited)
    assert (edited - plain)[changed] == pytest.approx([OPERATION, PLACED])
    kinds = len(("pre", "mid", "post")) * len(counted_operations())
    dense = BASE.depth * (len(STEPS) - 1) + BASE.depth + (1 + BASE.depth) * kinds
    assert len(plain) == dense + BASE.depth * NUMBERS
    assert not plain[dense:].any()


def test_no_ffn_is_encoded_as_one_channel_without_operations() -> None:
    space = Space(BASE, {"stack": (0, 1), "expansion": EXPANSIONS}, 1, 10**9)
    steps = widths(space)
    assert steps == (0, 2, 4, 5, 6)
    one = Architecture.of_ffns(BASE, (FFN(GELU, 1, Fraction(1, 64)), FFN(GELU)))
    none = Architecture.of_ffns(BASE, (FFN(stack=0), FFN(GELU)))
    rows = encode([one, none], steps)
    changed = rows[0] - rows[1]
    sizes = BASE.depth * (len(steps) - 1)
    assert not changed[:sizes].any()
    assert changed[sizes : sizes + 2] == pytest.approx([BLOCK, 0])
    assert sorted(changed[sizes + 2 :][changed[sizes + 2 :] != 0]) == pytest.approx(sorted([OPERATION, PLACED]))


def test_operations_and_routers_that_are_added_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sized((1, Fraction(1, 2)), (1, Fraction(1)))
    (before,) = encode([plain], STEPS)
    monkeypatch.setitem(UNARY, "square", Operation("a**2", np.square))
    monkeypatch.setitem(ROUTINGS, "modulo", RoutingKind(learned=False))
    graph = FFNGraph.parse("project(square(expand(x)))")
    squared = sized((1, Fraction(1, 2)), (1, Fraction(1)), graph=graph)
    rows = encode([plain, squared], STEPS)
    # In each segment the operation is counted over all layers and in each; the router is a column of each layer.
    assert rows.shape[1] == len(before) + len(("pre", "mid", "post")) * (1 + BASE.depth) + BASE.depth
    assert sorted(rows[1] - rows[0])[-3:] == pytest.approx([PLACED, PLACED, BASE.depth * OPERATION])


# Of a layer's experts: count, shared, top_k and capacity, and which routing they have.
NUMBERS = 4 + len(ROUTINGS)


def test_experts_are_encoded() -> None:
    def encoded(*experts: Experts) -> np.ndarray:
        layers = tuple(FFN(GELU, 1, Fraction(1, 16), one) for one in experts)
        (row,) = encode([Architecture.of_ffns(BASE, layers)], STEPS)
        return row

    plain = encoded(DENSE, DENSE)
    gated = Experts(8, Fraction(3, 4), "token_gate", 2, Fraction(5, 4))
    row = encoded(gated, DENSE)
    assert (row == plain)[: -BASE.depth * NUMBERS].all()
    numbers = row[-BASE.depth * NUMBERS :].reshape(BASE.depth, NUMBERS) / EXPERTS
    assert numbers[0] == pytest.approx([3, 0.75, 1, 0.8, *(float(one == "token_gate") for one in ROUTINGS)])
    assert not numbers[1].any()
    # The looser the capacity, the nearer is none at all.
    bounds = [None, Fraction(4), Fraction(2), Fraction(1)]
    rows = [encoded(Experts(8, Fraction(3, 4), "token_gate", 2, bound), DENSE) for bound in bounds]
    distances = [float(np.linalg.norm(other - rows[0])) for other in rows]
    assert distances == sorted(distances) and len(set(distances)) == 4
    assert len({row.tobytes() for row in (plain, *(encoded(Experts(2, routing=one), DENSE) for one in ROUTINGS))}) == 5


def test_experts_of_attention_and_head_are_encoded() -> None:
    """A column for each number that the space varies, by its logarithm; none where it varies none."""
    plain = sized((1, Fraction(1, 2)), (1, Fraction(1)))
    wide = Architecture.of_ffns(BASE, plain.ffns, attention_experts=4, head_experts=2)
    assert (encode([plain], STEPS) == encode([wide], STEPS)).all()
    rows = encode([plain, wide], STEPS, (*FFN_GENES, "attention_experts", "head_experts"))
    assert rows.shape[1] == encode([plain], STEPS).shape[1] + 3
    assert not (rows[1] - rows[0])[:-3].any()
    assert (rows[1] - rows[0])[-3:] == pytest.approx([2 * EXPERTS, 2 * EXPERTS, HEAD_EXPERTS])


def test_ranks_do_not_depend_on_the_scale() -> None:
    scores = [0.1, 0.9, 0.5, 0.5, 0.7]
    values = ranks([observed(score) for score in scores])
    assert values == pytest.approx(ranks([observed(1000 * score**3) for score in scores]))
    assert values[2] == values[3] == pytest.approx(norm.ppf((2.5 - 0.5) / 5))
    assert values[[0, 4, 1]] == pytest.approx(norm.ppf((np.array([1, 4, 5]) - 0.5) / 5))


def test_ranks_of_trials_without_a_score() -> None:
    values = ranks(
        [
            *(observed(score) for score in (0.1, 0.2, 0.3, 0.4)),
            observed(None, TrialState.RUNNING),
            observed(None, TrialState.PRUNED),
            observed(None, TrialState.FAIL),
        ]
    )
    assert values[4] == 0
    assert values[5] == pytest.approx(norm.ppf(0.25))
    assert values[6] == values[:4].min()
    assert list(ranks([observed(None, TrialState.FAIL), observed(None, TrialState.RUNNING)])) == [0, 0]


def plane(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points in the unit square with a score that increases along the first coordinate."""
    features = np.random.default_rng(seed).uniform(size=(count, 2))
    return features, features[:, 0]


def descend(features: np.ndarray, values: np.ndarray, leaf_size: int = 5, exploration: float = EXPLORATION) -> Path:
    """The path to the chosen leaf, of a tree that is learned again when it is by default."""
    return path_to_leaf(features, values, learned_trials(len(values), None), leaf_size, exploration)


def test_the_tree_parts_good_from_bad() -> None:
    features, values = plane(200)
    path = descend(features, values)
    assert len(path) > 2
    means = [values[region.rows].mean() for region in path]
    # Always to the better side, as that is so much better that its visits do not matter.
    assert all(deeper > region for region, deeper in pairwise(means[:3]))
    for parent, child in pairwise(path):
        assert set(child.rows) < set(parent.rows)
        assert set(child.rows) == set(parent.rows[child.has(features[parent.rows])])
        assert len(child.rows) >= 5


def test_classifiers_are_learned_once() -> None:
    """With classifiers that are known the tree is the same, and the same trials add no others."""
    features, values = plane(200)
    learned = learned_trials(200, None)
    known: dict[tuple[bytes, bytes], Ridge] = {}
    for count in (learned, learned + 1, 200, 200):
        before = len(known)
        given = features[:count], values[:count], learned, 5, EXPLORATION
        expected, found = path_to_leaf(*given), path_to_leaf(*given, known)
        assert [region.rows.tolist() for region in found] == [region.rows.tolist() for region in expected]
        assert all(region.classifier in known.values() for region in found[1:])
    assert before == len(known)


def test_features_of_trials_are_made_once() -> None:
    sampler = LaNAS(SPACE, 0, lambda architecture: float(architecture.ffns[0].inner(BASE)))
    trials = [observed(0.1 * seed, seed=seed) for seed in range(6)]
    for count in (3, 6, 4):
        expected = sampler.features([trial.architecture for trial in trials[:count]])
        np.testing.assert_array_equal(sampler.features_of_trials(trials[:count]), expected)


def test_the_tree_changes_at_phases_only() -> None:
    rng = np.random.default_rng(0)
    values = np.tile([-1.0, 1.0], 20) + rng.normal(0, 0.1, 40)
    features = np.stack((values, rng.normal(size=40)), axis=1)

    def root(count: int) -> np.ndarray:
        classifier = descend(features[:count], values[:count])[1].classifier
        assert classifier is not None
        return classifier.coef_

    following = int(PHASE * GROWTH)
    for count in range(PHASE, following):
        assert np.array_equal(root(count), root(PHASE))
    assert not np.array_equal(root(following), root(PHASE))


def test_equal_scores_are_one_region() -> None:
    features, _ = plane(30)
    assert len(descend(features, np.zeros(30))) == 1


@pytest.mark.parametrize("good", [True, False])
def test_many_equal_scores_are_parted_from_the_others(good: bool) -> None:
    """Two of three scores are equal to the lowest score, or to the highest, which is then the median."""
    features, _ = plane(30)
    values = np.tile([0.0, 0.0, 1.0], 10) if good else np.tile([0.0, 1.0, 1.0], 10)
    features[:, 0] = values
    path = descend(features, values)
    assert values[path[1].rows].min() == values[path[1].rows].max()


def test_less_than_two_leaves_are_one() -> None:
    features, values = plane(9)
    assert len(descend(features, values)) == 1
    path = descend(features, values, leaf_size=2)
    assert len(path) > 1 and len(path[-1].rows) >= 2


@pytest.mark.parametrize("exploration", [0.0, 0.1, EXPLORATION, 5.0])
def test_the_side_is_that_of_the_higher_bound(exploration: float) -> None:
    """Compared with equation 3, for every number of trials on the better side."""
    for later in range(5):  # fewer than those after which the tree is learned again
        features = np.array([[-1.0]] * 5 + [[1.0]] * (5 + later))
        values = np.array([-0.3] * 5 + [0.3] * (5 + later))
        root = log(10 + later)
        bad, good = (mean + 2 * exploration * sqrt(2 * root / visits) for mean, visits in ((-0.3, 5), (0.3, 5 + later)))
        assert descend(features, values, exploration=exploration)[1].good == (good > bad)


def test_the_tree_is_learned_again_after_so_many_trials() -> None:
    assert [learned_trials(count, 7) for count in (3, 10, 16, 17, 23, 24, 40)] == [10, 10, 10, 17, 17, 24, 38]
    by_default = sorted({learned_trials(count, None) for count in range(60)})
    assert by_default == [10, 15, 22, 33, 49]
    # 22 trials have 1.5 times as many as 15 only with the 23rd.
    assert [learned_trials(count, None) for count in (14, 15, 22, 23)] == [10, 15, 15, 22]


def test_candidates_in_the_deepest_region_that_has_any() -> None:
    features, values = plane(200)
    path = descend(features, values)
    everywhere, _ = plane(500, 1)
    leaf = within(path, everywhere)
    assert 0 < len(leaf) < 250
    assert all(region.has(everywhere[leaf]).all() for region in path)
    # None of these is on the good side, so that none may be lost.
    bad = everywhere[~path[1].has(everywhere)]
    assert list(within(path, bad)) == list(range(len(bad)))
    assert len(within(path, np.empty((0, 2)))) == 0


def test_the_surrogate_is_a_gaussian_process() -> None:
    """Compared with the textbook's formulas, and the expected improvement with the integral."""
    rng = np.random.default_rng(0)
    features, values, wanted = rng.normal(size=(12, 3)), rng.normal(size=12), rng.normal(size=(5, 3))

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squares = ((a[:, None] - b[None]) ** 2).sum(axis=-1)
        return 0.7**2 + a @ b.T + 0.5 * np.exp(-squares / (2 * 1.5**2))

    inverse = np.linalg.inv(kernel(features, features) + 0.2 * np.eye(12))
    means = kernel(wanted, features) @ inverse @ values
    variances = np.diag(kernel(wanted, wanted) - kernel(wanted, features) @ inverse @ kernel(features, wanted))
    surrogate = fit(features, values)
    assert surrogate.predict(wanted) == pytest.approx(means, rel=1e-6)

    goal = (kernel(features, features) @ inverse @ values).max()
    for mean, variance, gain in zip(means, variances, expected_improvement(surrogate, wanted), strict=True):
        deviation = variance**0.5
        expected, _ = quad(
            lambda z, mean=mean, deviation=deviation: max(mean + deviation * z - goal, 0) * norm.pdf(z),
            -12,
            12,
            points=[(goal - mean) / deviation],
        )
        assert gain == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_the_first_proposals_are_random() -> None:
    observations = [observed(score, seed=score) for score in range(N_STARTUP_TRIALS)]

    def proposed(count: int, proxy: ZeroCostProxy | None = None) -> list[Architecture]:
        return list(islice(LaNAS(SPACE, 0, proxy).propose(observations[:count], random.Random(7)), 5))

    rng = random.Random(7)
    drawn = [SPACE.sample(rng) for _ in range(5)]
    assert proposed(N_STARTUP_TRIALS - 1) == drawn
    assert proposed(N_STARTUP_TRIALS) != drawn
    # With a proxy fewer trials tell something.
    assert proposed(N_STARTUP_TRIALS_WITH_PROXY - 1, wanted) == drawn
    assert proposed(N_STARTUP_TRIALS_WITH_PROXY, wanted) != drawn


def wanted(architecture: Architecture) -> float:
    """A score that rewards many channels in the first layer and few in the second."""
    return log2(architecture.ffns[0].inner(BASE)) - log2(architecture.ffns[1].inner(BASE))


def test_proposals_are_in_the_best_region() -> None:
    """Of the tree's leaves, with nothing to explore; many candidates are not, and have lower scores."""
    members = [SPACE.sample(random.Random(seed)) for seed in range(60)]
    seen = [Observation(one, function_key(one), TrialState.COMPLETE, (wanted(one),)) for one in members]
    sampler = LaNAS(SPACE, 0, exploration=0.0)
    path = descend(sampler.features(members), ranks(seen), exploration=0.0)
    proposed = sampler.from_leaf(seen, random.Random(1))
    candidates = list(sampler.candidates([], random.Random(1)))
    inside, among = ([region.has(sampler.features(some)).all() for region in path] for some in (proposed, candidates))
    assert len(proposed) > 5 and all(inside) and not all(among)
    assert np.mean([wanted(one) for one in proposed]) > np.mean([wanted(one) for one in candidates]) + 1


@pytest.mark.parametrize("count", [40, 150, 400])
def test_the_surrogate_learns_from_a_hundred_trials_around_the_leaf(count: int) -> None:
    learned: list[np.ndarray] = []

    class Watched(LaNAS):
        def order(self, new: np.ndarray, features: np.ndarray, values: np.ndarray) -> Iterable[int]:
            learned.append(features)
            return super().order(new, features, values)

    architectures = [SPACE.sample(random.Random(seed)) for seed in range(count)]
    seen = [Observation(one, function_key(one), TrialState.COMPLETE, (wanted(one),)) for one in architectures]
    sampler = Watched(SPACE, 0)
    sampler.from_leaf(seen, random.Random(0))
    features = sampler.features(architectures)
    path = descend(features, ranks(seen))
    sizes = [len(region.rows) for region in path]
    assert len(learned[0]) == min(size for size in sizes if size >= min(100, count))
    assert count == 40 or min(sizes) < 100 < len(learned[0]) or len(learned[0]) == count


@pytest.mark.parametrize("sign", [1, -1])
def test_the_proxy_is_learned_from(sign: int) -> None:
    """After few trials, proposals are better with the proxy than without it, even if its sign is wrong."""

    def first(count: int, seed: int, proxy: ZeroCostProxy | None) -> float:
        members = [SPACE.sample(random.Random(100 * seed + number)) for number in range(count)]
        observations = [Observation(one, function_key(one), TrialState.COMPLETE, (wanted(one),)) for one in members]
        return wanted(next(LaNAS(SPACE, 0, proxy).propose(observations, random.Random(seed))))

    with_proxy, alone = (
        [first(6, seed, proxy) for seed in range(20)] for proxy in (lambda one: sign * 1e-3 * wanted(one) + 7, None)
    )
    assert np.mean(with_proxy) > np.mean(alone) + 0.3


def test_a_constant_proxy_changes_nothing() -> None:
    observations = [observed(score, seed=score) for score in range(30)]
    # One that rounds differently for some of them.
    same, alone = (
        list(islice(LaNAS(SPACE, 0, proxy).propose(observations, random.Random(0)), 5))
        for proxy in (lambda one: 0.1 * (1 + 1e-14 * wanted(one)), None)
    )
    assert same == alone


def test_a_proxy_has_the_scale_of_random_members() -> None:
    proxy = normalised(lambda one: 1e-3 * wanted(one) + 7, SPACE)
    assert proxy is not None
    rng = random.Random(1)
    found = [proxy(SPACE.sample(rng)) for _ in range(1000)]
    assert np.mean(found) == pytest.approx(0, abs=0.15)
    assert np.std(found) == pytest.approx(1, abs=0.1)


def test_linear_algebra_has_one_thread_while_a_proposal_is_made() -> None:
    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    class Watched(LaNAS):
        def order(self, new: np.ndarray, features: np.ndarray, values: np.ndarray) -> Iterable[int]:
            assert set(threads()) == {1}
            return super().order(new, features, values)

    observations = [observed(score, seed=score) for score in range(30)]
    with threadpool_limits(2):
        before = threads()
        next(Watched(SPACE, 0).propose(observations, random.Random(0)))
        assert threads() == before


def test_evolution_forgets_the_old() -> None:
    """Only the youngest `POPULATION` trials are parents, however good older ones were."""
    old = [observed(100.0, seed=seed) for seed in range(5)]
    young = [observed(float(seed), seed=100 + seed) for seed in range(evolution.POPULATION_SIZE)]
    near: set[Architecture] = set()
    for seed in range(20):
        rng = random.Random(seed)
        child = next(SAMPLERS["evolution"](SPACE, 0).propose(old + young, rng))
        parents = [one for one in old + young if distance(one.architecture, child) <= 1]
        assert any(one in young for one in parents)
        near |= {one.architecture for one in parents}
    # The worst of the young never wins a tournament of several.
    assert young[0].architecture not in near


def test_local_search_starts_again() -> None:
    best = observed(1.0, seed=0)
    worse = [observed(0.0, seed=1 + seed) for seed in range(local.PATIENCE)]
    sampler = SAMPLERS["local"](SPACE, 0)

    def child(observations: list[Observation]) -> Architecture:
        return next(sampler.propose(observations, random.Random(3)))

    assert distance(best.architecture, child([best, *worse[:-1]])) == 1
    assert child([best, *worse]) == SPACE.sample(random.Random(3))
    # From then on the best of what came after.
    second = observed(-1.0, seed=77)
    assert distance(second.architecture, child([best, *worse, second])) == 1
    # A failure is no better either; what still runs may be.
    failed = [observed(None, TrialState.FAIL, seed=1 + seed) for seed in range(local.PATIENCE)]
    running = [observed(None, TrialState.RUNNING, seed=1 + seed) for seed in range(local.PATIENCE)]
    assert child([best, *failed]) == SPACE.sample(random.Random(3))
    assert distance(best.architecture, child([best, *running])) == 1


def distance(one: Architecture, other: Architecture) -> int:
    """The number of layers that differ."""
    return sum(a != b for a, b in zip(one.ffns, other.ffns, strict=True))
