"""Neighbours and nearest members."""

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from search_spaces import DENSE, Architecture, Base, Experts, Space, neighbourhood
from search_spaces.spaces import GRAPHS, SIZES
from tests.search_spaces.small_spaces import KINDS, ROUTED, kinds_of_space, members, of_genes


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_other_members_near_by(kind: str, gated: bool) -> None:
    space = kinds_of_space(gated)[kind]
    for seed in range(10):
        rng = random.Random(seed)
        architecture = space.sample(rng)
        neighbours = list(itertools.islice(neighbourhood.neighbours(space, architecture, rng), 60))
        # Few are near an architecture that lacks FFNs, and with them graphs.
        assert len(set(neighbours)) > (20 if GRAPHS in space.vary and not kind.startswith("heads") else 5)
        for neighbour in neighbours:
            assert neighbour in space
            assert neighbour != architecture
            assert 1 <= sum(a != b for a, b in zip(architecture.parts, neighbour.parts, strict=True)) <= 2
            for before, after in zip(architecture.layers, neighbour.layers, strict=True):
                assert before.attention.heads == after.attention.heads or before.ffn == after.ffn
            pairs = list(zip(architecture.ffns, neighbour.ffns, strict=True))
            with_ffn = [(a, b) for a, b in pairs if a.stack and b.stack]
            assert sum(a.graph != b.graph for a, b in with_ffn) <= 1
            if SIZES not in space.vary:
                assert all(replace(a, graph=b.graph) == b for a, b in pairs)
            if GRAPHS not in space.vary:
                # A layer that gets an FFN gets the default graph.
                graphs = zip(neighbour.ffns, space.start_graphs, strict=True)
                assert all(ffn.graph == graph for ffn, graph in graphs if ffn.stack)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_lead_everywhere(kind: str) -> None:
    space = kinds_of_space()[kind]
    rng = random.Random(0)
    architecture = space.sample(rng)
    seen = set()
    for _ in range(200):
        architecture = next(neighbourhood.neighbours(space, architecture, rng))
        seen.add(architecture)
    for place in range(space.base.depth):
        # Stage 2 keeps a layer without an FFN.
        keeps = kind in ("graphs, no FFN", "heads, graphs") and place == 1
        assert (len({other.layers[place] for other in seen}) > 3) != keeps
    assert len({other.head for other in seen}) == len(space.head_sizes)
    assert len({other.embedding for other in seen}) == (len(space.embedding_sizes) if space.varies_sizes else 1)


@pytest.mark.parametrize(
    ("kind", "genes"),
    [
        ("sizes", {}),
        ("sizes", {"experts": ROUTED[:2]}),
        ("sizes, no FFN", {}),
        ("heads, sizes", {"heads": (0, 4), "expansion": (Fraction(1, 4),)}),
    ],
)
def test_a_size_space_is_walked_through_whole(kind: str, genes: dict[str, Any]) -> None:
    space = of_genes(kinds_of_space()[kind], **genes)
    waiting, seen = [space.sample(random.Random(0))], set()
    while waiting:
        architecture = waiting.pop()
        if architecture not in seen:
            seen.add(architecture)
            rng = random.Random(len(seen))
            waiting += [other for _ in range(5) for other in neighbourhood.neighbours(space, architecture, rng)]
    assert len(seen) == space.size_count() > 20


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_member(kind: str) -> None:
    space = kinds_of_space()[kind]
    member = space.sample(random.Random(1))
    assert neighbourhood.nearest(space, member) == member
    odd = Architecture.uniform(space.base, stack=2, expansion=Fraction(5, space.base.inner), attention_experts=2)
    nearest = neighbourhood.nearest(space, odd)
    assert odd not in space
    assert nearest in space
    assert next(neighbourhood.neighbours(space, odd, random.Random(0))) == nearest
    if space.vary == {SIZES} or kind in ("attention and head", "heads"):
        distance = partial(neighbourhood.distance, space.base)
        best = min(sum(map(distance, one.parts, odd.parts)) for one in members(space, space.start_graphs))
        assert sum(map(distance, nearest.parts, odd.parts)) == pytest.approx(best)


def test_the_nearest_experts() -> None:
    base = Base(depth=1, width=8, heads=2, inner=16, vocabulary=50, positions=16)
    options = (Experts(4, routing="token_gate"), Experts(4), Experts(2), DENSE)
    space = Space(base, {"stack": (1,), "expansion": (Fraction(1, 4),), "experts": options}, 1, 10**6)

    def nearest(experts: Experts) -> Experts:
        uniform = Architecture.uniform(base, expansion=Fraction(1, 4), experts=experts)
        return neighbourhood.nearest(space, uniform).ffns[0].experts

    assert [nearest(experts) for experts in options] == list(options)
    assert nearest(Experts(8, Fraction(1))).count == 4
    assert nearest(Experts(2, routing="sentence_gate")) == Experts(2)
