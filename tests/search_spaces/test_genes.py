"""The genes of attention, head and embedding: exact counts and the law of the draws; and what all genes say of
themselves.
"""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import Architecture, Attention, Embedding, Layer, PredictionHead, SpaceError, cost, neighbourhood
from search_spaces.equivalence import function_key
from search_spaces.genes import GENES, outside_ffns
from search_spaces.spaces import GRAPHS, SIZES
from tests.search_spaces.small_spaces import kinds_of_space, members, of_attention_and_head, of_genes, of_ranks
from tests.search_spaces.strategies import BASE, architectures

SPACES = of_attention_and_head() | of_ranks()
SPACES["tight"] = replace(SPACES["attention and head"], min_params=21_500, max_params=22_500)
COUNTED = SPACES | kinds_of_space()
ATTENTION = SPACES["tight"].genes["attention_experts"]


@dataclass
class Replay:
    """A trial that takes given choices, and the first operation where none is given."""

    choices: dict[str, str | float]

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return str(self.choices.get(name, choices[0]))

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return float(self.choices[name])


@given(st.sampled_from(list(SPACES)), st.floats(0, 1), st.floats(0, 1))
def test_any_positions_lead_to_a_member(kind: str, other: float, size: float) -> None:
    positions: dict[str, str | float] = {f"layer{layer}/size": size for layer in (1, 2, 3)}
    positions |= {"head/size": other, "embedding/size": other}
    assert SPACES[kind].suggest(Replay(positions)) in SPACES[kind]


@pytest.mark.parametrize("kind", [kind for kind, space in COUNTED.items() if SIZES in space.vary])
def test_counts_are_exact(kind: str) -> None:
    space = COUNTED[kind]
    every = members(space, space.start_graphs)
    assert space.size_count() == len(every) > 0
    assert all(member in space for member in every)
    assert len({function_key(member) for member in every[:300]}) == len(every[:300])


@pytest.mark.parametrize(
    "kind", ["attention and head", "tight", "attention and head, limited", "ranks", "ranks, limited"]
)
def test_each_member_has_the_same_part_of_the_positions(kind: str) -> None:
    """Exactly: with as many equally spaced positions as there are members, each first layer is drawn as often as there
    are members that have it; and each head, once all layers are the narrowest ones.
    """
    space = SPACES[kind]
    every = members(space, space.start_graphs)

    def spaced(count: int) -> list[float]:
        return [float(Fraction(2 * index + 1, 2 * count)) for index in range(count)]

    rest: dict[str, str | float] = {f"{place}/size": 0.0 for place in ("layer2", "layer3", "head", "embedding")}
    drawn = Counter(space.suggest(Replay(rest | {"layer1/size": at})).layers[0] for at in spaced(len(every)))
    assert drawn == Counter(member.layers[0] for member in every)
    first = space.suggest(Replay(rest | {"layer1/size": 0.0}))
    heads = [member.head for member in every if member.layers == first.layers]
    positions = {"embedding/size": 0.0} | space.choices(first)
    drawn_heads = Counter(space.suggest(Replay(positions | {"head/size": at})).head for at in spaced(len(heads)))
    assert drawn_heads == Counter(heads)
    ranks = [one.embedding for one in every if (one.layers, one.head) == (first.layers, first.head)]
    at_end = (space.suggest(Replay(positions | {"embedding/size": at})).embedding for at in spaced(len(ranks)))
    assert Counter(at_end) == Counter(ranks)


def test_stage_2_keeps_the_experts_of_the_start() -> None:
    foreign = Architecture.uniform(BASE, expansion=Fraction(1, 4), attention_experts=8, head_experts=2)
    for vary in ({GRAPHS}, {SIZES}):
        space = replace(SPACES["tight"], max_params=10**6, min_params=1, start=foreign, vary=frozenset(vary))
        samples = [space.sample(random.Random(seed)) for seed in range(100)]
        attentions = {layer.attention for one in samples for layer in one.layers}
        heads = {one.head for one in samples}
        if vary == {GRAPHS}:
            assert (attentions, heads) == ({Attention(BASE.heads, 8)}, {PredictionHead(2)}) and not space.varies(
                "head_experts"
            )
            assert foreign in space
            near = itertools.islice(neighbourhood.neighbours(space, foreign, random.Random(0)), 30)
            assert {other.head for other in near} == heads
        else:
            assert attentions == {Attention(BASE.heads, count) for count in ATTENTION} and heads == {
                PredictionHead(1),
                PredictionHead(3),
            }
            assert foreign not in space
    with pytest.raises(SpaceError, match="has expansion 1/4, stack 1, experts dense, heads 4, attention_experts 8"):
        space.choices(foreign)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_experts": (2, 2)}, "attention_experts: must be one or more distinct values, not (2, 2)"),
        ({"rank": (None, 24)}, "ranks: 24 is not below base.width (24)"),
        ({"head_experts": ()}, "head_experts: must be one or more distinct values, not ()"),
        ({"stakc": (1,)}, "genes: unknown gene 'stakc'; did you mean 'stack'?"),
    ],
)  # fmt: skip
def test_genes_that_cannot_be(changes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        of_genes(SPACES["tight"], **changes)
    assert message in str(caught.value)


def test_the_space_reaches_to_the_largest_architecture() -> None:
    most = Architecture.uniform(BASE, attention_experts=4, head_experts=3)
    with pytest.raises(SpaceError, match=f"reaches from [0-9,]+ to {cost.params(most, 3):,}; lower"):
        replace(SPACES["tight"], min_params=10**6, max_params=10**7)


@given(architectures(), architectures())
def test_each_gene_reads_what_it_replaces(one: Architecture, other: Architecture) -> None:
    """With the genes of another architecture a layer becomes that architecture's, but for the heads, and its distance
    to it vanishes.
    """
    for mine, theirs in zip(one.parts, other.parts, strict=True):
        if isinstance(mine, Layer) and not mine.ffn.stack:
            continue  # without an FFN, its other genes have no value
        changed = mine
        genes = {name: gene for name, gene in GENES.items() if isinstance(mine, gene.of)}
        for gene in genes.values():
            changed = gene.replace(changed, gene.read(theirs))
        if isinstance(changed, Layer):
            assert replace(changed, attention=theirs.attention) == theirs
        assert sum(gene.distance(one.base, changed, theirs) for gene in genes.values()) == 0


def test_in_words() -> None:
    assert outside_ffns(Architecture.uniform(BASE)) == ""
    both = Architecture.uniform(BASE, attention_experts=2, head_experts=3)
    assert outside_ffns(both) == "2 experts in attention, 3 experts in head"
    low = replace(both, embedding=Embedding(16))
    assert outside_ffns(low) == "2 experts in attention, 3 experts in head, embedding of rank 16"
    layers = (both.layers[0], Layer(Attention(BASE.heads)), both.layers[2])
    assert outside_ffns(replace(both, layers=layers)) == "2 experts in attention of layers 1, 3, 3 experts in head"
