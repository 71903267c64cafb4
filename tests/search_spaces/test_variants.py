"""Experts in attention and head as genes: validity, exact counts, the law of the draws, and neighbours."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import Architecture, Base, Experts, Genes, Space, SpaceError, cost, neighbourhood, variants
from search_spaces.equivalence import function_key
from search_spaces.limits import Limit
from search_spaces.spaces import GRAPHS, SIZES
from tests.search_spaces.strategies import BASE, small_space

ATTENTION, HEAD = (4, 1, 2), (1, 3)
# Bounds that a part of the members on each of the six bases keeps.
LOW, HIGH = 20_000, 44_000


def fixed_macs(base: Base) -> int:
    return cost.fixed_macs(base, 8, 3)


def ffn_macs(base: Base, genes: Genes) -> int:
    return cost.ffn_macs(base, genes, 8)


def space_of(low: int = LOW, high: int = HIGH, **more: object) -> Space:
    changes = {"min_params": low, "max_params": high, "attention_experts": ATTENTION, "head_experts": HEAD} | more
    return replace(small_space(1, 10**9), **changes)  # type: ignore[arg-type]


# Nine times the MACs of the narrowest layer: with more experts, these leave only eight.
MACS = Limit("macs", fixed_macs(BASE), ffn_macs, fixed_macs(BASE) + 9 * 4_608, fixed_macs)
START = Architecture.uniform(replace(BASE, attention_experts=2), expansion=Fraction(1, 2))
SPACES = {
    "parameters": space_of(),
    "tight": space_of(21_500, 22_500),
    "MACs": space_of(1, 10**6, limits=(MACS,)),
    "experts": space_of(experts=(Experts(), Experts(2, Fraction(1), "token_gate"))),
    "attention alone": space_of(head_experts=()),
    "sizes": space_of(start=START, vary=frozenset({SIZES})),
}


def brute_force(space: Space) -> list[Architecture]:
    """All members with base graphs, independently of the counting."""
    sizes = [Genes(space.graph, *size) for size in itertools.product(space.stacks, space.expansions, space.experts)]
    found = []
    for attention in space.attention_experts or (1,):
        for head in space.head_experts or (1,):
            base = replace(space.base, attention_experts=attention, head_experts=head)
            for layers in itertools.product(sizes, repeat=base.depth):
                if any(genes.problem(base) for genes in layers):
                    continue
                architecture = Architecture(base, layers)
                within = space.min_params <= cost.params(architecture, space.labels) <= space.max_params
                if within and all(cost.macs(architecture, 8, space.labels) <= x.maximum for x in space.limits):
                    found.append(architecture)
    return found


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
    assert architecture.base.attention_experts in ATTENTION
    assert architecture.base.head_experts in (space.head_experts or (1,))
    choices = space.choices(architecture)
    assert {"attention_experts", "head_experts"} & choices.keys() == space.expert_counts.keys()
    assert space.suggest(Replay(choices)) == architecture


@given(st.sampled_from(list(SPACES)), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_any_positions_lead_to_a_member(kind: str, attention: float, head: float, size: float) -> None:
    space = SPACES[kind]
    positions = {"attention_experts": attention, "head_experts": head}
    assert space.suggest(Replay(positions | {f"layer{layer}/size": size for layer in (1, 2, 3)})) in space


@pytest.mark.parametrize("kind", [kind for kind in SPACES if kind != "sizes"])
def test_counts_are_exact(kind: str) -> None:
    space = SPACES[kind]
    members = brute_force(space)
    assert space.size_count() == len(members) > 0
    assert all(member in space for member in members)
    on_bases = Counter(member.base for member in members)
    costs = [space.costs(layer, graph) for layer, graph in enumerate(space.start_graphs)]
    assert space.count_on(costs) == [on_bases[base] for base in space.bases]


@pytest.mark.parametrize("kind", ["parameters", "tight", "MACs"])
def test_each_member_has_the_same_part_of_the_positions(kind: str) -> None:
    """Exactly: with as many equally spaced positions as there are members, each number of experts is drawn as often as
    there are members that have it.
    """
    space = SPACES[kind]
    costs = [space.costs(layer, graph) for layer, graph in enumerate(space.start_graphs)]
    ways = space.count_on(costs)
    for name, number in (("attention_experts", sum(ways)), ("head_experts", None)):
        groups: dict[int, list[Base]] = {0: list(space.bases)}
        if number is None:
            groups = {count: [b for b in space.bases if b.attention_experts == count] for count in ATTENTION}
        for group in groups.values():
            its_ways = [way for base, way in zip(space.bases, ways, strict=True) if base in group]
            total = sum(its_ways)
            if not total:
                continue
            drawn = Counter(
                getattr(variants.draw(group, its_ways, lambda field: place if field == name else 0.0), name)  # noqa: B023
                for place in (float(Fraction(2 * index + 1, 2 * total)) for index in range(total))
            )
            expected: Counter[int] = Counter()
            for base, way in zip(group, its_ways, strict=True):
                expected[getattr(base, name)] += way
            assert drawn == +expected


def test_choices_that_fit_with_nothing_are_never_drawn() -> None:
    least = cost.params(Architecture.uniform(replace(BASE, attention_experts=2), expansion=Fraction(1, 4)), 3)
    space = space_of(1, least)
    possible = {BASE, replace(BASE, attention_experts=2), replace(BASE, head_experts=3)}
    assert {member.base for member in brute_force(space)} == possible
    ends = itertools.product((0.0, 0.5, 1.0), repeat=2)
    sizes = {f"layer{layer}/size": 0.5 for layer in (1, 2, 3)}
    drawn = {space.suggest(Replay({"attention_experts": a, "head_experts": h} | sizes)).base for a, h in ends}
    assert drawn == possible


@pytest.mark.parametrize("kind", SPACES)
def test_neighbours_are_members_and_lead_to_all_bases(kind: str) -> None:
    space, rng = replace(SPACES[kind], edit_rate=0.0), random.Random(0)
    costs = [space.costs(layer, graph) for layer, graph in enumerate(space.start_graphs)]
    architecture = space.sample(rng)
    bases = set()
    for _ in range(150):
        near = list(itertools.islice(neighbourhood.neighbours(space, architecture, rng), 10))
        assert all(other in space and other != architecture for other in near)
        assert all(variants.differing(other.base, architecture.base) <= 1 for other in near)
        bases |= {other.base for other in near}
        architecture = rng.choice(near)
    assert bases == {base for base in space.bases if space.count_on(costs)[space.bases.index(base)]}


def test_a_step_to_more_experts_takes_the_nearest_sizes() -> None:
    space = SPACES["tight"]
    largest = Architecture.uniform(BASE, stack=2)
    assert largest not in space
    found = neighbourhood.nearest(space, largest)
    assert found in space and found.base == BASE
    wide = Architecture.uniform(replace(BASE, attention_experts=4, head_experts=3))
    found = neighbourhood.nearest(space, wide)
    # Four experts leave too little for any FFN.
    assert found in space and found.base == replace(BASE, attention_experts=2, head_experts=3)


def test_stage_2_keeps_the_experts_of_the_start() -> None:
    for vary in ({GRAPHS}, {SIZES}):
        foreign = Architecture.uniform(replace(BASE, attention_experts=8), expansion=Fraction(1, 2))
        space = space_of(1, 10**6, start=foreign, vary=frozenset(vary))
        bases = {space.sample(random.Random(seed)).base for seed in range(100)}
        if vary == {GRAPHS}:
            assert bases == {foreign.base} and not space.expert_counts
            assert foreign in space
            assert all(other.base == foreign.base for other in itertools.islice(
                neighbourhood.neighbours(space, foreign, random.Random(0)), 30))  # fmt: skip
        else:
            assert bases == set(space.bases) and foreign not in space
    with pytest.raises(SpaceError, match="is not a member of the space: it has attention_experts 8 and head_experts 1"):
        space.choices(foreign)


def test_other_experts_are_another_function() -> None:
    keys = {function_key(Architecture.uniform(base)) for base in space_of().bases}
    assert len(keys) == 6


def test_without_choices_there_is_the_base_alone() -> None:
    own = replace(BASE, attention_experts=2, head_experts=3)
    space = Space(own, (1, 2), (Fraction(1, 2),), 1, 10**6)
    assert space.bases == (own,) and space.expert_counts == {}
    assert space.sample(random.Random(0)).base == own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_experts": (2, 4)}, "attention_experts: must be distinct numbers, the base's 1 among them"),
        ({"head_experts": (1, 1)}, "head_experts: must be distinct numbers, the base's 1 among them"),
        ({"max_params": 11_000, "min_params": 1}, "raise max_params, or allow smaller expansions"),
        ({"min_params": 10**6, "max_params": 10**7}, "lower min_params, or allow larger expansions"),
        ({"limits": (replace(MACS, maximum=1000),)}, "no architecture keeps to macs 1,000: the smallest"),
    ],
)  # fmt: skip
def test_spaces_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        space_of(**changes)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_the_space_reaches_to_the_largest_base() -> None:
    most = Architecture.uniform(replace(BASE, attention_experts=4, head_experts=3), stack=2)
    with pytest.raises(SpaceError, match=f"reaches from [0-9,]+ to {cost.params(most, 3):,}; lower"):
        space_of(10**6, 10**7)


@given(st.lists(st.integers(0, 1000), min_size=6, max_size=6).filter(any))
def test_positions_are_the_inverse_of_draw(ways: list[int]) -> None:
    bases = space_of().bases
    for base, number in zip(bases, ways, strict=True):
        if number:
            assert variants.draw(bases, ways, variants.positions(bases, ways, base).__getitem__) == base


def test_the_experts_in_words() -> None:
    assert variants.experts_in_words(BASE) == ""
    both = replace(BASE, attention_experts=2, head_experts=3)
    assert variants.experts_in_words(both) == "2 experts in every attention, 3 experts in the head"
