"""The coarse search's space: reach, validity, the budget, and the law of its draws."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import optuna
import pytest

from search_spaces import (
    DENSE,
    FFN,
    GELU,
    PUBLISHED,
    Architecture,
    Base,
    Experts,
    FFNGraph,
    Space,
    SpaceError,
    cost,
    neighbourhood,
)
from search_spaces.limits import Limit
from search_spaces.spaces import GRAPHS, SIZES
from tests.search_spaces.small_spaces import HIGH, KINDS, LOW, ROUTED, kinds_of_space, members, of_genes, splits
from tests.search_spaces.strategies import broken_rules, small_space

BASE = PUBLISHED["base"].base
PAPER = Space(
    BASE, {"stack": (1, 2, 3, 4), "expansion": tuple(Fraction(1, n) for n in (1, 2, 3, 4))}, 14_900_000, 15_900_000
)


@dataclass
class Scripted:
    """A trial that takes given choices, the first choice where none is given, and checks how it is asked."""

    choices: dict[str, str]
    size: float = 0.5
    seen: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        assert name not in self.seen
        assert len(set(choices)) == len(choices) > 1
        assert all(isinstance(choice, str) for choice in choices)
        self.seen[name] = tuple(choices)
        chosen = self.choices.get(name, choices[0])
        assert chosen in choices
        return chosen

    def suggest_float(self, name: str, low: float, high: float) -> float:
        assert (low, high) == (0.0, 1.0)
        return self.size


def assert_member(space: Space, architecture: Architecture) -> None:
    assert architecture.base == space.base
    assert space.min_params <= cost.params(architecture, space.num_labels) <= space.max_params
    for genes in (ffn for ffn in architecture.ffns if ffn.stack):
        assert not broken_rules(genes.graph)
        assert SIZES not in space.vary or genes.stack in space.genes["stack"]
        assert SIZES not in space.vary or genes.expansion in space.genes["expansion"]
        assert SIZES not in space.vary or genes.experts in space.genes["experts"]
        assert splits(genes, space.base)


def window(mismatch: str, low: int, high: int) -> Space:
    """A budget so tight that most mixed graphs leave it."""
    fixed = cost.params(Architecture.uniform(small_space(LOW, HIGH, mismatch).base, stack=0))
    return small_space(fixed + low, fixed + high, mismatch, 1.0)


@pytest.mark.parametrize("mismatch", ["narrow", "wide"])
@pytest.mark.parametrize("end", ["smallest", "largest"])
def test_draws_stay_in_a_tight_budget(mismatch: str, end: str) -> None:
    base = small_space(LOW, HIGH, mismatch).base
    stack, expansion = (1, Fraction(1, 4)) if end == "smallest" else (2, Fraction(1))
    only = 3 * cost.ffn_params(base, FFN(GELU, stack, expansion))
    space = window(mismatch, only, only)
    assert space.size_count() == 1
    for seed in range(100):
        assert_member(space, space.sample(random.Random(seed)))


def test_any_choice_of_floats_is_a_member() -> None:
    space = small_space(LOW, HIGH)
    for size in (0.0, 1e-300, 0.25, 0.999999999, 1.0):
        assert_member(space, space.suggest(Scripted({}, size)))
    smallest, largest = (cost.params(space.suggest(Scripted({}, size))) for size in (0.0, 1.0))
    assert smallest < largest


def test_one_name_has_one_set_of_choices() -> None:
    rng = random.Random(0)

    class Recorder(Scripted):
        def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
            super().suggest_categorical(name, choices)
            return rng.choice(choices)

    seen: dict[str, tuple[str, ...]] = {}
    for _ in range(300):
        trial = Recorder({})
        PAPER.suggest(trial)
        for name, choices in trial.seen.items():
            assert seen.setdefault(name, choices) == choices


def test_names_and_base_choices() -> None:
    trial = Scripted({})
    assert {genes.graph for genes in PAPER.suggest(trial).ffns} == {GELU}
    assert [trial.seen[f"layer1/{part}/op"][0] for part in ("pre", "mid", "post")] == ["none", "gelu", "none"]
    assert "none" not in trial.seen["layer1/mid/op"]
    assert {len(choices) for choices in trial.seen.values()} == {10, 11}


SPELLED: dict[str, dict[str, str]] = {
    "project(gelu(expand(x)))": {},
    "tanh(project(gelu(expand(x))))": {"post/op": "tanh"},
    "elu(project(gelu(expand(x))))": {"post/op": "elu"},
    "leaky_relu(project(gelu(expand(x))))": {"post/op": "leaky_relu"},
    "sigmoid(project(gelu(expand(x))))": {"post/op": "sigmoid"},
    "sigmoid(project(relu(expand(x))))": {"mid/op": "relu", "post/op": "sigmoid"},
    "project(gelu(expand(max(x,tanh(x)))))": {"pre/op": "max", "pre/right/own-not-plain": "tanh"},
    "project(relu(mul(expand(x),x)))": {"mid/op": "mul", "mid/right/own-x": "x", "mid/outer": "relu"},
    # An intermediate result used three times.
    "add(project(mul(expand(max(x,tanh(x))),max(x,tanh(x)))),relu(max(x,tanh(x))))": {
        "pre/op": "max",
        "pre/right/own-not-plain": "tanh",
        "mid/op": "mul",
        "mid/right/own-x-pre": "pre",
        "post/op": "add",
        "post/right/own-x-pre": "pre",
        "post/right/pre": "relu",
    },
}


@pytest.mark.parametrize("text", SPELLED)
def test_spelled_graphs_are_reached(text: str) -> None:
    trial = Scripted({f"layer2/{name}": choice for name, choice in SPELLED[text].items()})
    assert str(PAPER.suggest(trial).ffns[1].graph) == text
    assert set(trial.choices) <= set(trial.seen)


def test_every_published_layer_is_spelled() -> None:
    published = {str(genes.graph) for architecture in PUBLISHED.values() for genes in architecture.ffns}
    assert published <= set(SPELLED)


def test_an_activated_intermediate_is_not_activated_again() -> None:
    choices = {"pre/op": "add", "pre/right/own-not-plain": "tanh", "pre/outer": "relu"}
    choices |= {"mid/op": "mul", "mid/right/own-x-pre": "pre"}
    trial = Scripted({f"layer1/{name}": choice for name, choice in choices.items()})
    graph = PAPER.suggest(trial).ffns[0].graph
    assert str(graph) == "project(mul(expand(relu(add(x,tanh(x)))),relu(add(x,tanh(x)))))"
    assert "layer1/mid/right/pre" not in trial.seen


@pytest.mark.parametrize(("low", "high", "experts"), [(LOW, HIGH, (DENSE,)), (LOW, 18_150, ROUTED)])
def test_sizes_are_uniform_in_the_budget(low: int, high: int, experts: tuple[Experts, ...]) -> None:
    space = small_space(low, high, experts=experts)
    graphs = [GELU, FFNGraph.parse("project(relu(mul(expand(x),x)))"), GELU]
    choices = {"layer2/mid/op": "mul", "layer2/mid/right/own-x": "x", "layer2/mid/outer": "relu"}
    expected = [member.ffns for member in members(space, graphs)]
    assert 20 < len(expected) < 216
    assert {genes.experts for layers in expected for genes in layers} == set(experts)

    # A chi-squared test: its statistic has mean `degrees` and variance 2 * degrees.
    rng = random.Random(0)

    class Drawn(Scripted):
        def suggest_float(self, name: str, low: float, high: float) -> float:
            return rng.random()

    draws = 60 * len(expected)
    found = Counter(space.suggest(Drawn(choices)).ffns for _ in range(draws))
    assert set(found) == set(expected)
    statistic = sum((found[layers] - 60) ** 2 / 60 for layers in expected)
    degrees = len(expected) - 1
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5


def test_deep_spaces_count_beyond_floats() -> None:
    base = Base(depth=256, width=12, heads=3, inner=12)
    space = Space(
        base, {"stack": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16), "expansion": (Fraction(1),)}, 1, 10**9
    )
    assert space.size_count() == 16**256
    assert_member(space, space.sample(random.Random(0)))


def test_draw_edits_operations_only() -> None:
    rng = random.Random(0)
    space = small_space(LOW, HIGH, mutation_rate=0.2)
    operations = Counter(space.draw("layer1/pre/op", ("none", "a", "b"), rng) for _ in range(5000))
    assert operations["none"] / 5000 == pytest.approx(0.8, abs=0.03)
    assert operations["a"] / operations["b"] == pytest.approx(1, abs=0.2)
    others = Counter(space.draw("layer1/pre/left", ("plain", "a", "b"), rng) for _ in range(6000))
    assert all(count / 6000 == pytest.approx(1 / 3, abs=0.03) for count in others.values())


def test_another_base_activation() -> None:
    graph = FFNGraph.parse("project(relu(expand(x)))")
    space = Space(BASE, {"stack": (1, 2), "expansion": (Fraction(1),)}, 1, 10**9, mutation_rate=0.0, graph=graph)
    assert {genes.graph for genes in space.sample(random.Random(0)).ffns} == {graph}
    trial = Scripted({})
    space.suggest(trial)
    assert sorted(trial.seen["layer1/mid/op"]) == sorted(set(trial.seen["layer1/mid/op"]))
    with pytest.raises(SpaceError, match=r"graph: must be 'project\(<activation>\(expand\(x\)\)\)'"):
        Space(
            BASE,
            {"stack": (1,), "expansion": (Fraction(1),)},
            1,
            10**9,
            graph=FFNGraph.parse("tanh(project(gelu(expand(x))))"),
        )


HALF = (Fraction(1, 2),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1,), HALF, 1, 2), "no architecture has 1 to 2 parameters: this space reaches from 13,465,899 to 13,465,899"),
        (
            ((1,), HALF, 1, 2),
            "raise max_params, or allow smaller expansions, smaller stacks, or fewer heads or experts",
        ),
        (((1,), HALF, 10**8, 10**9), "lower min_params, or allow larger expansions, larger stacks or more experts"),
        (((1, 4), HALF, 13_600_000, 13_600_001), "no size in between fits; lower min_params or raise max_params"),
        (((1,), HALF, 3, 2), "min_params = 3 must be at most max_params = 2"),
        (((), HALF, 1, 10**9), "stacks: must be one or more distinct values, not ()"),
        (((1, 1), HALF, 1, 10**9), "stacks: must be one or more distinct values"),
        (((1,), (), 1, 10**9), "expansions: must be one or more distinct values"),
        (((-1,), HALF, 1, 10**9), "stacks and expansions: stack: must be from 0 to 16, not -1"),
        (((0,), HALF, 1, 10**9), "stacks: at least one must be above 0, a layer without an FFN"),
        (((0, 1, 0), HALF, 1, 10**9), "stacks: must be one or more distinct values"),
        (((1,), (Fraction(3, 2),), 1, 10**9), "expansion: must be above 0 and at most 1, not 3/2"),
        (((1,), (Fraction(1, 541),), 1, 10**9), "1/541 of the inner width 540 leaves no channel"),
        (((1,), HALF, 1, 10**9, 1.5), "mutation_rate: must be from 0 to 1, not 1.5"),
        (((1,), HALF, 1, 10**9, float("nan")), "mutation_rate: must be from 0 to 1, not nan"),
    ],
)
def test_faulty_spaces(arguments: tuple, message: str) -> None:
    stacks, expansions, *rest = arguments
    with pytest.raises(SpaceError) as error:
        Space(BASE, {"stack": stacks, "expansion": expansions}, *rest)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_base_graph_is_in_the_space() -> None:
    with pytest.raises(SpaceError, match=r"gate\(x\)\)\)' is not in the space: set gated = true"):
        Space(BASE, {}, 1, 10**9, graph=FFNGraph.parse("project(mul(gelu(expand(x)),gate(x)))"))


MOST = "with 1/4, 5 experts that share 0 of 48 channels have at most 0 + (48 - 0) // 5 = 9 channels each, not 12"


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        ((), "experts: must be one or more distinct values, not ()"),
        ((DENSE, Experts()), "experts: must be one or more distinct values"),
        (
            (Experts(5), Experts(6)),
            f"expansions and experts: no combination is valid; {MOST}; lower the expansion, or share",
        ),
    ],
)
def test_faulty_experts(experts: tuple[Experts, ...], message: str) -> None:
    with pytest.raises(SpaceError) as error:
        small_space(1, 10**9, experts=experts)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_does_not_go_together_is_left_out() -> None:
    space = small_space(1, 10**9, experts=ROUTED)
    sizes = [layer.ffn for layer in space.sizes]
    found = [[ffn.expansion for ffn in sizes if (ffn.stack, ffn.experts) == (1, experts)] for experts in ROUTED]
    whole, half, quarter = space.genes["expansion"]
    assert found == [[quarter], [whole, half, quarter], [quarter], [half, quarter], [whole, half, quarter]]
    assert len(space.sizes) == 2 * 10
    alone = of_genes(space, experts=ROUTED[:1])
    assert [layer.ffn for layer in alone.sizes] == [FFN(GELU, stack, quarter, ROUTED[0]) for stack in (1, 2)]
    outside = Architecture.uniform(space.base, expansion=quarter, experts=Experts(3))
    with pytest.raises(SpaceError, match=r"layers\[0\] has expansion 1/4, stack 1, experts 3 hash, shared 0"):
        space.choices(outside)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_choices_are_the_inverse_of_suggest(kind: str, gated: bool) -> None:
    space = kinds_of_space(gated)[kind]
    for seed in range(60):
        architecture = space.sample(random.Random(seed))
        assert architecture in space
        assert_member(space, architecture)
        trial = optuna.trial.FixedTrial(space.choices(architecture))
        assert space.suggest(trial) == architecture


def test_a_graph_that_cannot_be_spelled() -> None:
    space = small_space(LOW, HIGH)
    deep = FFNGraph.parse("add(project(gelu(expand(x))),mul(x,tanh(relu(x))))")
    layers = tuple(replace(genes, graph=deep) for genes in space.sample(random.Random(0)).ffns)
    start = Architecture.of_ffns(space.base, layers)
    assert start not in space
    with pytest.raises(SpaceError, match=r"not a member of the space: layers\[0\] has the graph add"):
        space.choices(start)
    assert {genes.graph for genes in neighbourhood.nearest(space, start).ffns} == {GELU}
    # What varies starts from the base graph; what does not is kept as it is.
    varied = replace(space, start=start, vary=frozenset({GRAPHS}), mutation_rate=0.0, min_params=1)
    assert {genes.graph for genes in varied.sample(random.Random(0)).ffns} == {GELU}
    kept = replace(space, start=start, vary=frozenset({SIZES}))
    assert {genes.graph for genes in kept.sample(random.Random(0)).ffns} == {deep}
    assert kept.sample(random.Random(0)) in kept


def test_draws_stay_near_the_start() -> None:
    space = kinds_of_space()["graphs"]
    assert space.start is not None
    still = replace(space, mutation_rate=0.0)
    assert {still.sample(random.Random(seed)) for seed in range(20)} == {space.start}
    near = replace(space, mutation_rate=0.1)
    same = [
        a.graph == b.graph
        for seed in range(100)
        for a, b in zip(near.sample(random.Random(seed)).ffns, space.start.ffns, strict=True)
    ]
    assert 0.4 < sum(same) / len(same) < 0.95


@pytest.mark.parametrize(
    "text",
    [
        "project(mul(gelu(expand(x)),gate(x)))",
        "project(mul(swish(expand(x)),gate(x)))",
        "project(mul(relu(expand(x)),expand(x)))",  # the square of relu
    ],
)
def test_gated_graphs_are_reached(text: str) -> None:
    space = small_space(LOW, 10**6)
    graph = FFNGraph.parse(text)
    layers = (FFN(graph, 1, space.genes["expansion"][0]),) * space.base.depth
    architecture = Architecture.of_ffns(space.base, layers)
    gated = replace(space, gated=True, min_params=1)
    assert gated.suggest(optuna.trial.FixedTrial(gated.choices(architecture))) == architecture
    assert (architecture in replace(space, min_params=1)) == ("gate" not in text)


def test_limits_hold_and_say_what_is_wrong() -> None:
    space = kinds_of_space()["limited"]
    limit = space.limits[0]
    totals = [limit.total(space.sample(random.Random(seed))) for seed in range(100)]
    assert max(totals) <= limit.maximum
    assert len(set(totals)) > 3
    with pytest.raises(SpaceError, match=r"max_macs = 5: no architecture in this space is within it; the least is"):
        replace(space, limits=(replace(limit, maximum=5),))


def test_bounds_of_which_each_alone_is_kept() -> None:
    """A limit that every architecture keeps, such as that of a cost that is minimised alone, is not named."""
    macs = Limit("macs", 7, lambda base, layer: layer.ffn.stack * layer.ffn.inner(base), 7 + 3 * 12)
    latency = Limit("latency", 0, lambda base, layer: layer.ffn.stack * 1000, 10**18)
    space = small_space(1, 10**6)
    largest = cost.params(Architecture.uniform(space.base, stack=max(space.genes["stack"])), space.num_labels)
    within = replace(space, limits=(macs, latency))
    assert space.size_count() > within.size_count() > 0
    with pytest.raises(SpaceError) as caught:
        replace(within, min_params=largest, max_params=largest)
    assert str(caught.value) == (
        f"no architecture meets all bounds at once: {largest:,} to {largest:,} parameters, macs at most 43; "
        "lower min_params or raise max_macs"
    )
    with pytest.raises(SpaceError) as caught:
        replace(within, min_params=largest, max_params=largest, limits=(macs, replace(latency, maximum=4500)))
    assert str(caught.value).endswith(
        "macs at most 43, latency at most 4.5 ms; lower min_params, raise max_macs or raise max_latency"
    )
    # No size has one parameter less, whatever the limits are.
    with pytest.raises(SpaceError, match=r"but no size in between fits; lower min_params or raise max_params"):
        replace(within, min_params=largest - 1, max_params=largest - 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vary": frozenset()}, "vary: must be graphs, sizes or both, not []"),
        ({"vary": frozenset({"stacks"})}, "vary: must be graphs, sizes or both, not ['stacks']"),
        (
            {"vary": frozenset({GRAPHS})},
            "vary: without a start, both graphs and sizes must vary; give a start, or leave out vary",
        ),
        ({"start": PUBLISHED["base"]}, "start: its base differs from the space's in "),
    ],
)
def test_faulty_starts(changes: dict, message: str) -> None:
    with pytest.raises(SpaceError) as error:
        replace(small_space(LOW, HIGH), **changes)
    assert message in str(error.value)


def test_expansions_of_the_same_width_are_one_choice() -> None:
    """24 of 48 channels twice; the first expansion stands for both."""
    one = small_space(LOW, HIGH)
    both = replace(one, genes={**one.genes, "expansion": (*one.genes["expansion"], Fraction(49, 97))})
    assert (one.sizes, one.size_count()) == (both.sizes, both.size_count())
    assert both.sample(random.Random(0)) == one.sample(random.Random(0))
