"""The genes of attention and head: validity, exact counts, the law of the draws, and neighbours; and what all genes say
of themselves.
"""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import (
    FFN,
    Architecture,
    Attention,
    Base,
    Experts,
    Head,
    Layer,
    Space,
    SpaceError,
    cost,
    neighbourhood,
)
from search_spaces.equivalence import function_key
from search_spaces.genes import GENES, outside_ffns
from search_spaces.limits import Limit
from search_spaces.spaces import GRAPHS, SIZES
from tests.search_spaces.small_spaces import of_genes
from tests.search_spaces.strategies import BASE, architectures, small_space

ATTENTION, HEAD = (4, 1, 2), (1, 3)
# Bounds that a part of the members keeps.
LOW, HIGH = 20_000, 40_000


def macs(base: Base, layer: Layer) -> int:
    return cost.layer_macs(base, layer, 8)


def macs_of_head(base: Base, head: Head) -> int:
    return cost.head_macs(base, head, 8, 3)


def space_of(low: int = LOW, high: int = HIGH, **more: object) -> Space:
    """Two expansions, so that brute force can list the members."""
    genes = {"stack": (1,), "expansion": (Fraction(1), Fraction(1, 4))}
    genes |= {"attention_experts": ATTENTION, "head_experts": HEAD}
    genes |= {name: more.pop(name) for name in GENES if name in more}
    changes = {"min_params": low, "max_params": high, **more}
    return replace(of_genes(small_space(1, 10**9), **genes), **changes)  # type: ignore[arg-type]


START = Architecture.uniform(BASE, expansion=Fraction(1, 2), attention_experts=2)
LEAST_MACS = cost.macs(Architecture.uniform(BASE, expansion=Fraction(1, 4)), 8, 3)
SPACES = {
    "parameters": space_of(),
    "tight": space_of(21_500, 22_500),
    # With a gate in every attention, these do not leave enough for three prediction layers.
    "MACs": space_of(1, 10**6, limits=(Limit("macs", 0, macs, LEAST_MACS + 3000, macs_of_head),)),
    "experts": space_of(experts=(Experts(), Experts(2, Fraction(1), "token_gate"))),
    "attention alone": space_of(head_experts=(1,)),
    "sizes": space_of(start=START, vary=frozenset({SIZES})),
}


def brute_force(space: Space) -> list[Architecture]:
    """All members with base graphs, independently of the counting."""
    attentions = [Attention(BASE.heads, count) for count in space.genes["attention_experts"]]
    sizes = itertools.product(*(space.genes[name] for name in ("stack", "expansion", "experts")))
    ffns = [ffn for ffn in (FFN(space.graph, *size) for size in sizes) if not ffn.problem(space.base)]
    layers = list(itertools.starmap(Layer, itertools.product(attentions, ffns)))
    members = []
    for head in map(Head, space.genes["head_experts"]):
        for row in itertools.product(layers, repeat=space.base.depth):
            architecture = Architecture(space.base, row, head)
            within = space.min_params <= cost.params(architecture, space.labels) <= space.max_params
            if within and all(cost.macs(architecture, 8, space.labels) <= x.maximum for x in space.limits):
                members.append(architecture)
    return members


@dataclass
class Replay:
    """A trial that takes given choices, and the first operation where none is given."""

    choices: dict[str, str | float]

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return str(self.choices.get(name, choices[0]))

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return float(self.choices[name])


@settings(max_examples=60)
@given(st.sampled_from(list(SPACES)), st.randoms(use_true_random=False))
def test_samples_are_members_that_their_choices_lead_to(kind: str, rng: random.Random) -> None:
    space = SPACES[kind]
    architecture = space.sample(rng)
    assert architecture in space
    assert space.min_params <= cost.params(architecture, space.labels) <= space.max_params
    assert {layer.attention.experts for layer in architecture.layers} <= set(ATTENTION)
    assert architecture.head.experts in space.genes["head_experts"]
    choices = space.choices(architecture)
    assert ("head/size" in choices) == space.varies("head_experts")
    assert space.suggest(Replay(choices)) == architecture


@given(st.sampled_from(list(SPACES)), st.floats(0, 1), st.floats(0, 1))
def test_any_positions_lead_to_a_member(kind: str, head: float, size: float) -> None:
    positions: dict[str, str | float] = {"head/size": head, **{f"layer{layer}/size": size for layer in (1, 2, 3)}}
    assert SPACES[kind].suggest(Replay(positions)) in SPACES[kind]


@pytest.mark.parametrize("kind", [kind for kind in SPACES if kind != "sizes"])
def test_counts_are_exact(kind: str) -> None:
    space = SPACES[kind]
    members = brute_force(space)
    assert space.size_count() == len(members) > 0
    assert all(member in space for member in members)
    assert len({function_key(member) for member in members[:300]}) == len(members[:300])


@pytest.mark.parametrize("kind", ["parameters", "tight", "MACs"])
def test_each_member_has_the_same_part_of_the_positions(kind: str) -> None:
    """Exactly: with as many equally spaced positions as there are members, each first layer is drawn as often as there
    are members that have it; and each head, once all layers are the narrowest ones.
    """
    space = SPACES[kind]
    members = brute_force(space)

    def spaced(count: int) -> list[float]:
        return [float(Fraction(2 * index + 1, 2 * count)) for index in range(count)]

    rest: dict[str, str | float] = {"layer2/size": 0.0, "layer3/size": 0.0, "head/size": 0.0}
    drawn = Counter(space.suggest(Replay(rest | {"layer1/size": at})).layers[0] for at in spaced(len(members)))
    assert drawn == Counter(member.layers[0] for member in members)
    first = space.suggest(Replay(rest | {"layer1/size": 0.0}))
    heads = [member.head for member in members if member.layers == first.layers]
    positions = space.choices(first)
    drawn_heads = Counter(space.suggest(Replay(positions | {"head/size": at})).head for at in spaced(len(heads)))
    assert drawn_heads == Counter(heads)


@pytest.mark.parametrize("kind", SPACES)
def test_neighbours_are_members_and_change_one_part_or_two(kind: str) -> None:
    space, rng = replace(SPACES[kind], mutation_rate=0.0), random.Random(0)
    architecture = space.sample(rng)
    seen: set[tuple[int, object]] = set()
    for _ in range(150):
        near = list(itertools.islice(neighbourhood.neighbours(space, architecture, rng), 10))
        assert all(other in space and other != architecture for other in near)
        for other in near:
            changed = [a != b for a, b in zip(other.parts, architecture.parts, strict=True)]
            assert 1 <= sum(changed) <= 2
            seen |= set(enumerate((*(layer.attention for layer in other.layers), other.head)))
        architecture = rng.choice(near)
    if kind != "sizes":
        members = brute_force(space)
        for place in range(BASE.depth):
            assert {part for at, part in seen if at == place} == {one.layers[place].attention for one in members}
        assert {part for at, part in seen if at == BASE.depth} == {one.head for one in members}


def test_the_nearest_member_has_the_nearest_experts() -> None:
    space = SPACES["parameters"]
    for wanted in (START, Architecture.uniform(BASE, expansion=Fraction(1, 4), attention_experts=4, head_experts=3)):
        nearest = neighbourhood.nearest(space, wanted)
        found = sum(neighbourhood.distance(BASE, *pair) for pair in zip(nearest.parts, wanted.parts, strict=True))
        assert nearest in space
        assert found == pytest.approx(
            min(
                sum(neighbourhood.distance(BASE, *pair) for pair in zip(one.parts, wanted.parts, strict=True))
                for one in brute_force(space)
            )
        )


def test_stage_2_keeps_the_experts_of_the_start() -> None:
    foreign = Architecture.uniform(BASE, expansion=Fraction(1, 4), attention_experts=8, head_experts=2)
    for vary in ({GRAPHS}, {SIZES}):
        space = space_of(1, 10**6, start=foreign, vary=frozenset(vary))
        samples = [space.sample(random.Random(seed)) for seed in range(100)]
        attentions = {layer.attention for one in samples for layer in one.layers}
        heads = {one.head for one in samples}
        if vary == {GRAPHS}:
            assert (attentions, heads) == ({Attention(BASE.heads, 8)}, {Head(2)}) and not space.varies("head_experts")
            assert foreign in space
            near = itertools.islice(neighbourhood.neighbours(space, foreign, random.Random(0)), 30)
            assert {other.head for other in near} == heads
        else:
            assert attentions == {Attention(BASE.heads, count) for count in ATTENTION} and heads == {Head(1), Head(3)}
            assert foreign not in space
    with pytest.raises(SpaceError, match=r"layers\[0\] has expansion 1/4, stack 1, experts dense, attention_experts 8"):
        space.choices(foreign)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_experts": (2, 2)}, "attention_experts: must be one or more distinct values, not (2, 2)"),
        ({"head_experts": ()}, "head_experts: must be one or more distinct values, not ()"),
        ({"genes": {"stakc": (1,)}}, "genes: unknown gene 'stakc'; did you mean 'stack'?"),
        ({"max_params": 11_000, "min_params": 1}, "raise max_params, or allow smaller expansions"),
        ({"min_params": 10**6, "max_params": 10**7}, "lower min_params, or allow larger expansions"),
        ({"limits": (Limit("macs", 0, macs, 1000),)}, "no architecture keeps to macs 1,000: the smallest"),
        ({"start": replace(START, base=replace(BASE, gate_scale="probability"))}, "start: its base differs"),
    ],
)  # fmt: skip
def test_spaces_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        space_of(**changes)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_the_space_reaches_to_the_largest_architecture() -> None:
    most = Architecture.uniform(BASE, attention_experts=4, head_experts=3)
    with pytest.raises(SpaceError, match=f"reaches from [0-9,]+ to {cost.params(most, 3):,}; lower"):
        space_of(10**6, 10**7)


@given(architectures(), architectures())
def test_each_gene_reads_what_it_replaces(one: Architecture, other: Architecture) -> None:
    """With the genes of another architecture a layer becomes that architecture's, but for the heads, and its distance
    to it vanishes.
    """
    for mine, theirs in zip(one.parts, other.parts, strict=True):
        if isinstance(mine, Layer) and not mine.ffn.stack:
            continue  # without an FFN, its other genes have no value
        changed = mine
        genes = {name: gene for name, gene in GENES.items() if gene.of_head == isinstance(mine, Head)}
        for gene in genes.values():
            changed = gene.replace(changed, gene.read(theirs))
        if isinstance(changed, Layer):
            assert replace(changed, attention=theirs.attention) == theirs
        assert sum(gene.distance(one.base, changed, theirs) for gene in genes.values()) == 0


def test_in_words() -> None:
    assert outside_ffns(Architecture.uniform(BASE)) == ""
    both = Architecture.uniform(BASE, attention_experts=2, head_experts=3)
    assert outside_ffns(both) == "2 experts in attention, 3 experts in head"
    layers = (both.layers[0], Layer(Attention(BASE.heads)), both.layers[2])
    assert outside_ffns(replace(both, layers=layers)) == "2 experts in attention of layers 1, 3, 3 experts in head"
