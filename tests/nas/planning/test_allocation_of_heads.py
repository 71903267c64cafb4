"""The integer programme over heads, FFNs and layers left out against enumeration."""

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from nas.planning.allocation import PredictedLosses, allocate, allocations, fewest_layers
from search_spaces import FFN, GELU, Architecture, Attention, FFNGraph, Layer, Space, cost
from search_spaces.base import Base
from search_spaces.graph import base_graph
from search_spaces.limits import Limit
from search_spaces.operations import UNARY
from search_spaces.spaces import GRAPHS, SIZES
from tests.tiny import BASE

RELU = FFNGraph.parse("project(relu(expand(x)))")
WIDTHS, HEADS = tuple(Fraction(1, n) for n in (1, 2, 4)), (0, 1, 2, 4)
START = Architecture.of_ffns(BASE, (FFN(RELU), FFN(GELU), FFN(GELU)))
FEWEST = cost.params(Architecture(BASE, (Layer(Attention(0), FFN(stack=0)),) * 3))
MOST = cost.params(Architecture.uniform(BASE))


def losses(seed: int = 0, base: Base = BASE) -> PredictedLosses:
    """Random falling losses of FFNs and of heads, in which gelu is not always best."""
    rng = np.random.default_rng(seed)

    def falling(count: int, scale: float) -> np.ndarray:
        return np.append(np.sort(rng.random(count))[::-1], 0) * scale

    of_ffns = {op: [falling(base.inner, rng.uniform(0.5, 1.2)) for _ in range(base.depth)] for op in UNARY}
    return PredictedLosses(base, "gelu", of_ffns, [falling(base.heads, rng.uniform(0.2, 1)) for _ in range(base.depth)])


def latency(seed: int, share: float) -> Limit:
    """Random costs of attentions and FFNs, and of the LayerNorms, which a layer left out has not; within a share of the
    base model's.
    """
    rng = random.Random(seed)
    of_heads = {heads: heads and rng.randint(20, 60) + 15 * heads for heads in range(5)}
    of_ffns = {op: rng.randint(0, 40) for op in ("none", *UNARY)}

    def of_layer(base: object, layer: Layer) -> int:
        ffn = layer.ffn
        blocks = ffn.stack * (50 + 3 * ffn.inner(BASE) + of_ffns[ffn.graph.nodes[-2].op])
        return 0 if layer.left_out else 25 + of_heads[layer.attention.heads] + blocks

    whole = 3 * of_layer(None, Layer(Attention(4), FFN(GELU)))
    return Limit("latency", 100, of_layer, 100 + int(share * whole))


def space(**changes: object) -> Space:
    genes = {"stack": (0, 1, 2), "expansion": WIDTHS, "heads": HEADS, "attention_experts": (1, 2)}
    genes["head_experts"] = (1, 3)
    settings: dict[str, object] = {"min_params": 1, "max_params": MOST, "start": START, "vary": frozenset({SIZES})}
    return Space(BASE, genes, **(settings | changes))  # type: ignore[arg-type]


def members(within: Space) -> Iterator[Architecture]:
    """All members with at most one block in every layer, and no experts."""
    of_layers = []
    for graph in within.start_graphs:
        ffns = [FFN(stack=0), *(FFN(graph, 1, width) for width in WIDTHS)]
        of_layers.append([Layer(Attention(heads), ffn) for heads, ffn in product(HEADS, ffns)])
    for layers in product(*of_layers):
        if within.within_budget(architecture := Architecture(BASE, layers)):
            yield architecture


def difference(one: Architecture, other: Architecture) -> int:
    """The number of attentions and FFNs in which they differ."""
    pairs = zip(one.layers, other.layers, strict=True)
    return sum((a.attention != b.attention) + (a.ffn != b.ffn) for a, b in pairs)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.6])
def test_no_member_has_a_lower_loss(seed: int, share: float) -> None:
    """Within bounds on parameters and on latency, of which either may be the tighter one."""
    limited = space(max_params=FEWEST + int(share * (MOST - FEWEST)), limits=(latency(seed, 0.4),))
    table = losses(seed)
    found = allocate(limited, table)
    assert found is not None and found in limited
    assert table.of(found) == pytest.approx(min(map(table.of, members(limited))), rel=1e-9)


def test_a_layer_left_out_saves_its_norms() -> None:
    """Exactly the bounds of an architecture with two whole layers and one that is left out, which is the best there."""
    layers = (*Architecture.uniform(BASE, RELU).layers[:1], Layer(Attention(0), FFN(stack=0)), Layer(Attention(4)))
    best = Architecture(BASE, layers)
    limit = latency(0, 1)
    exact = space(max_params=cost.params(best), limits=(replace(limit, maximum=limit.total(best)),))
    table = losses(0)
    cheap = [np.zeros(49) if layer == 1 else of_layer + 1 for layer, of_layer in enumerate(table.losses["gelu"])]
    cheap = [np.append(of_layer[:-1], 0) for of_layer in cheap]
    heads = [
        np.zeros(5) if layer == 1 else np.append(of_layer[:-1] + 1, 0) for layer, of_layer in enumerate(table.heads)
    ]
    table = replace(table, losses=dict.fromkeys(UNARY, cheap), heads=heads)
    assert table.of(best) == 0 and allocate(exact, table) == best
    fewer = replace(exact, max_params=exact.max_params - 1)
    assert allocate(fewer, table) != best


def test_graphs_and_sizes_together() -> None:
    base = replace(BASE, depth=2)
    table = losses(1, base)
    most = cost.params(Architecture.uniform(base))
    least = cost.params(Architecture(base, (Layer(Attention(0), FFN(stack=0)),) * 2))
    widths = (Fraction(1), Fraction(1, 3))
    for share in (0.15, 0.5):
        genes = {"stack": (0, 1), "expansion": widths, "heads": (0, 1, 3)}
        within = Space(base, genes, 1, least + int(share * (most - least)))
        found = allocate(within, table)
        assert found is not None and found in within
        ffns = [FFN(FFNGraph.parse(f"project({op}(expand(x)))"), 1, width) for op, width in product(UNARY, widths)]
        layers = [Layer(Attention(heads), ffn) for heads, ffn in product((0, 1, 3), [*ffns, FFN(stack=0)])]
        every = (Architecture(base, pair) for pair in product(layers, repeat=2))
        assert table.of(found) == pytest.approx(
            min(table.of(one) for one in every if within.within_budget(one)), rel=1e-9
        )


def test_several_are_the_best_that_differ() -> None:
    """Each is the best of all that differ from those before it in two attentions or FFNs."""
    within, table = space(limits=(latency(3, 0.4),)), losses(2)
    every, found = list(members(within)), allocations(within, table, 4)
    assert len(found) == 4
    for number, one in enumerate(found):
        others = [other for other in every if all(difference(other, before) >= 2 for before in found[:number])]
        assert one in others
        assert table.of(one) == pytest.approx(min(map(table.of, others)), rel=1e-9)
    # With a single part, in that; and all have the gate of the base graph.
    base, gated = replace(BASE, depth=1), base_graph("gelu", gated=True)
    one_layer = Space(base, {"stack": (1,), "expansion": WIDTHS}, 1, MOST, graph=gated, gated=True)
    assert [one.ffns[0].graph.gated for one in allocations(one_layer, losses(0, base), 4)] == [True] * 4


def test_nothing_changes_where_heads_do_not_vary() -> None:
    """Whether the table has heads or not."""
    genes = {"stack": (0, 1), "expansion": WIDTHS}
    within = Space(BASE, genes, 1, int(0.7 * MOST), limits=(latency(1, 0.6),))
    table = losses(4)
    plain = allocations(within, replace(table, heads=()), 3)
    assert allocations(within, table, 3) == plain and len(plain) == 3
    assert (
        allocations(Space(BASE, genes | {"heads": (4,)}, 1, within.max_params, limits=within.limits), table, 3) == plain
    )
    assert {layer.attention for one in plain for layer in one.layers} == {Attention(4)}
    assert fewest_layers(within, table) is None


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 1.0])
def test_fewer_layers_are_whole_or_left_out(share: float) -> None:
    genes = {"stack": (0, 1), "expansion": WIDTHS[1:], "heads": (0, 1), "attention_experts": (1, 2)}  # none is whole
    limit, table = latency(5, share), losses(6)
    within = Space(BASE, genes, 1, MOST, limits=(limit,))
    whole, none = Layer(Attention(4), FFN(GELU)), Layer(Attention(0), FFN(stack=0))
    every = [Architecture(BASE, layers) for layers in product((whole, none), repeat=3)]
    fitting = [one for one in every if limit.total(one) <= limit.maximum]
    assert fewest_layers(within, table) == min(fitting, key=table.of)
    assert (len(fitting) == 8) == (share == 1.0)


def test_a_whole_layer_loses_nothing_where_only_narrow_ones_were_measured() -> None:
    """As a layer of half its width loses much, it would otherwise be left out."""
    half = BASE.inner // 2
    curves = [np.linspace(start, end, 1 + half) for start, end in ((1.0, 0.9), (0.5, 0.1), (1.0, 0.9))]
    table = replace(losses(), losses={"gelu": curves, "relu": curves}, heads=[np.zeros(BASE.heads + 1)] * 3)
    genes = {"stack": (0, 1), "expansion": WIDTHS[1:], "heads": (0, 1)}
    found = fewest_layers(Space(BASE, genes, 1, MOST - 1), table)
    assert found is not None and [layer.left_out for layer in found.layers] == [False, True, False]
    assert table.of(found) == 0.5
    assert table.of(Architecture.uniform(BASE, graph=RELU)) == pytest.approx(0.9 + 0.1 + 0.9)  # the widest measured


def test_layers_that_cannot_be_left_out() -> None:
    for genes in ({"stack": (1,), "heads": (0, 4)}, {"stack": (0, 1), "heads": (1, 4)}):
        within = Space(BASE, {"expansion": WIDTHS, **genes}, 1, MOST)
        found = allocate(within, losses())
        assert fewest_layers(within, losses()) is None and found is not None and found in within


def test_stage_2_keeps_layers_without_ffns() -> None:
    """And those that are left out: only the operations of the others are chosen."""
    half = Fraction(1, 2)
    layers = (
        Layer(Attention(2), FFN(stack=0)),
        Layer(Attention(0), FFN(stack=0)),
        Layer(Attention(0), FFN(GELU, 1, half)),
    )
    table = losses(7)
    found = allocate(space(start=Architecture(BASE, layers), vary=frozenset({GRAPHS})), table)
    best = min(UNARY, key=lambda op: table.losses[op][2][24])
    chosen = FFN(FFNGraph.parse(f"project({best}(expand(x)))"), 1, half)
    assert found == Architecture(BASE, (*layers[:2], replace(layers[2], ffn=chosen)))
