"""The integer programme against enumeration, and the predicted losses that it works on."""

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nas.planning.allocation import PredictedLosses, allocate, allocations, fewest_layers
from nas.preparation.predictions import HEADS
from search_spaces import FFN, Architecture, Attention, Experts, FFNGraph, Layer, Space, cost
from search_spaces.genes import GENES
from search_spaces.graph import GELU, base_graph
from search_spaces.layer import FULL
from search_spaces.limits import Limit
from search_spaces.operations import UNARY
from search_spaces.spaces import GRAPHS, SIZES
from tests.tiny import BASE

WIDTHS = tuple(Fraction(1, n) for n in (1, 2, 4, 8))
RELU = FFNGraph.parse("project(relu(expand(x)))")
MAX_PARAMS = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 3)))


def losses(seed: int = 0) -> PredictedLosses:
    """Random falling losses: gelu's are the lowest at most widths, but not at all."""
    rng = np.random.default_rng(seed)

    def falling(scale: float) -> np.ndarray:
        return np.append(np.sort(rng.random(BASE.inner))[::-1], 0) * scale

    scales = {op: 1.0 if op == "gelu" else 1.2 for op in UNARY}
    return PredictedLosses(
        BASE, "gelu", {op: [falling(scale / (layer + 1)) for layer in range(3)] for op, scale in scales.items()}
    )


def space(**changes: object) -> Space:
    genes = {"stack": (1, 2), "expansion": WIDTHS} | {name: changes.pop(name) for name in GENES if name in changes}
    settings: dict[str, object] = {"min_params": 1, "max_params": MAX_PARAMS}
    return Space(BASE, genes, **(settings | changes))  # type: ignore[arg-type]


def of_micros(base: object, layer: Layer) -> int:
    """A cost with a constant part, as latencies have."""
    genes = layer.ffn
    return 40 + 3 * genes.inner(BASE) + (25 if genes.graph == GELU else 0)


def members(within: Space, operations: tuple[str, ...]) -> Iterator[Architecture]:
    """All members with at most one block, of these activations, in every layer."""
    genes = [FFN(base_graph(op, within.gated), 1, width) for op, width in product(operations, WIDTHS)]
    genes += [FFN(GELU, 0)] if 0 in within.genes["stack"] else []
    for layers in product(genes, repeat=BASE.depth):
        if (architecture := Architecture.of_ffns(BASE, layers)) in within:
            yield architecture


@pytest.mark.parametrize(("seed", "gated"), [(0, False), (1, False), (2, False), (0, True)])
@pytest.mark.parametrize("limits", [(), (Limit("latency", 100, of_micros, 420),)], ids=["params", "latency"])
def test_no_member_has_a_lower_loss(seed: int, gated: bool, limits: tuple[Limit, ...]) -> None:
    within = replace(space(limits=limits), graph=base_graph("gelu", gated), gated=gated)
    table = losses(seed)
    found = allocate(within, table)
    assert found is not None and found in within
    least = min(map(table.of, members(within, tuple(UNARY))))
    assert table.of(found) == pytest.approx(least, rel=1e-9)


OF_WIDTHS_AND_RANKS = Limit(
    "latency",
    100,
    lambda base, layer: 40 + 3 * layer.ffn.inner(base),
    420,
    embedding_cost=lambda base, part: 0 if part.rank is None else 20 + 3 * part.rank,
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limits", [(), (OF_WIDTHS_AND_RANKS,)], ids=["params", "latency"])
def test_the_rank_of_the_word_embedding_is_allocated_too(seed: int, limits: tuple[Limit, ...]) -> None:
    """Against all members."""
    rng = np.random.default_rng(seed)
    ranks = np.append(np.sort(rng.random(BASE.width))[::-1] * 0.1, 0)
    table = replace(losses(seed), ranks=[ranks])
    within = space(stack=(1,), rank=(None, 4, 12, 20), limits=limits)
    every = [
        architecture
        for one in members(space(stack=(1,), max_params=10**6), ("gelu", "relu"))
        for embedding in within.embedding_sizes
        if (architecture := replace(one, embedding=embedding)) in within
    ]
    low = next(architecture for architecture in every if architecture.embedding.rank == 12)
    assert table.of(low) == pytest.approx(table.of(replace(low, embedding=FULL)) + ranks[12])
    activations = replace(table, losses={op: table.losses[op] for op in ("gelu", "relu")})
    found = allocate(within, activations)
    assert found is not None and found in within and found.embedding != FULL
    assert activations.of(found) == pytest.approx(min(map(activations.of, every)), rel=1e-9)
    best = allocations(within, activations, 5)
    assert best[0] == found and [activations.of(one) for one in best] == sorted(map(activations.of, best))
    for one, other in combinations(best, 2):
        own, theirs = ((*one.ffns, one.embedding) for one in (one, other))
        assert sum(mine != yours for mine, yours in zip(own, theirs, strict=True)) >= 2


def test_weighted_losses() -> None:
    """Each part has its own weight, and the allocation follows the weights."""
    rng = np.random.default_rng(3)
    table = replace(losses(), heads=[np.linspace(1, 0, 5)] * 3, ranks=[np.linspace(1, 0, BASE.width + 1)])
    within = space(heads=(0, 2, 4), rank=(4, None, 20))
    weights = rng.uniform(0.5, 2, 7)
    for architecture in (within.sample(random.Random(seed)) for seed in range(5)):
        parts = table.of_parts(architecture)
        assert parts.sum() == pytest.approx(table.of(architecture)) and (parts > 0).sum() > 2
        assert table.weighted(weights).of_parts(architecture) == pytest.approx(weights * parts)
    lower = allocate(within, table.weighted(np.array([9, 1, 1, 1, 1, 1, 1])))
    upper = allocate(within, table.weighted(np.array([1, 1, 9, 1, 1, 1, 1])))
    assert lower is not None and upper is not None
    assert lower.ffns[0].expansion > upper.ffns[0].expansion and lower.ffns[2].expansion < upper.ffns[2].expansion


def test_fewer_layers_keep_all_words() -> None:
    within = space(stack=(0, 1), heads=(0, 2, 4), rank=(4, None, 20), max_params=10**6)
    table = replace(losses(), heads=[np.linspace(1, 0, 5)] * 3, ranks=[np.linspace(1, 0, BASE.width + 1)])
    tight = replace(within, max_params=cost.params(Architecture.uniform(BASE)) - 1)
    found = fewest_layers(tight, table)
    assert found is not None and found.embedding == FULL and sum(layer.left_out for layer in found.layers) == 1


def test_what_does_not_vary_stays() -> None:
    start = Architecture.of_ffns(
        BASE, (FFN(RELU, 2, Fraction(1, 4)), FFN(GELU, 1, Fraction(1, 8)), FFN(GELU, 1, Fraction(1, 8)))
    )
    table = losses(3)
    graphs = space(start=start, vary=frozenset({GRAPHS}))
    found = allocate(graphs, table)
    assert found is not None and found in graphs
    assert [genes.stack for genes in found.ffns] == [2, 1, 1]
    sizes = space(start=start, vary=frozenset({SIZES}))
    found = allocate(sizes, table)
    assert found is not None and [genes.graph for genes in found.ffns] == [RELU, GELU, GELU]


def test_none_are_left() -> None:
    """Three layers of one width and one operation: a single member."""
    start = Architecture.uniform(BASE, expansion=Fraction(1, 4))
    only = space(start=start, vary=frozenset({SIZES}), stack=(1,), expansion=(Fraction(1, 4),))
    assert allocations(only, losses(), 5) == [start]
    assert allocate(only, losses(), exclude=[start]) is None


def test_the_loss_of_a_layer(tmp_path: Path) -> None:
    table = replace(losses(4), heads=[np.append(np.random.default_rng(layer).random(4), 0) for layer in range(3)])
    rows = {f"{op}/{layer}": row for op, of_op in table.losses.items() for layer, row in enumerate(of_op)}
    rows |= {f"{HEADS}/{layer}": row for layer, row in enumerate(table.heads)}
    save_file({name: torch.from_numpy(row.copy()) for name, row in rows.items()}, tmp_path / "predictions.safetensors")
    stored = PredictedLosses.load(tmp_path / "predictions.safetensors", BASE, GELU)
    assert stored.losses.keys() == table.losses.keys()
    for genes, op, width in (
        (FFN(RELU, 1, Fraction(1, 4)), "relu", 12),
        (FFN(FFNGraph.parse("tanh(project(relu(expand(x))))"), 1, Fraction(1, 4)), "relu", 12),
        # No table has the graph: it counts as the base graph.
        (FFN(FFNGraph.parse("project(mul(expand(x),x))"), 2, Fraction(1, 2)), "gelu", 24),
        (FFN(RELU, 1, Fraction(1, 8), Experts(4, shared=Fraction(1, 2))), "relu", 6),
        (FFN(GELU, 0), "gelu", 0),
    ):
        for given in (table, stored):
            assert given.of_ffn(1, genes) == table.losses[op][1][width]
    for layer, heads in product(range(3), range(5)):
        assert stored.of_attention(layer, Attention(heads)) == table.heads[layer][heads]
    assert stored.of_attention(1, Attention(4, 2)) == 0
    expected = [table.heads[layer][heads] + table.losses["relu"][layer][12] for layer, heads in enumerate((2, 0, 1))]
    architecture = Architecture.uniform(BASE, RELU, expansion=Fraction(1, 4)).with_heads([2, 0, 1])
    assert stored.of(architecture) == pytest.approx(sum(expected))


def test_bounds_are_kept_to_the_unit() -> None:
    """With one parameter less, or one more, the best member is no longer allowed."""
    rng, every = np.random.default_rng(6), list(members(space(stack=(1,), max_params=10**6), ("gelu", "relu")))
    table = PredictedLosses(BASE, "gelu", {op: list(rng.random((3, BASE.inner + 1))) for op in ("gelu", "relu")})
    sizes = np.array([cost.params(one) for one in every])
    of_every = np.array([table.of(one) for one in every])
    # Below some bound the best member is not the largest, so that a lower bound excludes it, too.
    caps = np.unique(sizes)[5:]
    best = [int(np.where(sizes <= cap, of_every, np.inf).argmin()) for cap in caps]
    size, cap = next((int(sizes[one]), int(cap)) for one, cap in zip(best, caps, strict=True) if sizes[one] < cap)
    for low, high in ((1, size - 1), (1, size), (size, cap), (size + 1, cap)):
        found = allocate(space(stack=(1,), min_params=low, max_params=high), table)
        assert found is not None and low <= cost.params(found) <= high
        allowed = of_every[(low <= sizes) & (sizes <= high)]
        assert table.of(found) == pytest.approx(allowed.min(), rel=1e-9)


def test_what_the_solver_rounds_into_the_budget_is_not_returned() -> None:
    """The best architecture costs one unit more than allowed, of so many that the solver does not see it."""
    units = {width: 10**9 + round(10**8 * float(width)) for width in WIDTHS}
    limit = Limit("macs", 0, lambda base, layer: units[layer.ffn.expansion], 3 * max(units.values()) - 1)
    table = replace(losses(), losses=dict.fromkeys(UNARY, losses().losses["gelu"]))
    within = space(stack=(1,), max_params=10**6, limits=(limit,))
    found = allocate(within, table)
    assert found is None or limit.total(found) <= limit.maximum


def test_only_one_block_is_considered() -> None:
    """A second block has no predicted loss of its own, so that where only two blocks are large enough, none fits."""
    low = cost.params(Architecture.uniform(BASE)) + 1
    two = space(min_params=low, max_params=10**6)
    assert allocate(two, losses()) is None
    assert allocate(replace(two, genes={**two.genes, "stack": (2,)}), losses()) is not None
    found = allocate(space(max_params=10**6), losses())
    assert found is not None and [ffn.stack for ffn in found.ffns] == [1, 1, 1]


def test_a_width_beyond_the_table_counts_as_its_widest() -> None:
    table = replace(losses(), losses={"gelu": [np.linspace(1, 0.1, 20)] * 3})
    wide, half = (FFN(GELU, 1, expansion) for expansion in (Fraction(3, 4), Fraction(1, 2)))
    assert table.of_ffn(0, wide) == table.of_ffn(0, half) == 0.1
    assert table.of_ffn(0, FFN(GELU, 1, Fraction(1, 4))) == np.linspace(1, 0.1, 20)[12]
