"""One small space of every kind, and all its sizes by brute force."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from search_spaces import (
    DENSE,
    FFN,
    Architecture,
    Attention,
    Base,
    Embedding,
    Experts,
    FFNGraph,
    Layer,
    PredictionHead,
    Space,
    cost,
)
from search_spaces.limits import Limit
from search_spaces.spaces import GRAPHS, SIZES
from tests.search_spaces.strategies import small_space

LOW, HIGH = 18_000, 24_000
# On the small base of 48 inner channels, two of them go with some of the expansions 1, 1/2 and 1/4, others with all.
ROUTED = (
    Experts(4),
    DENSE,
    Experts(4, routing="token_gate", capacity=Fraction(5, 4)),
    Experts(2, Fraction(2, 3), "balanced_hash"),
    Experts(3, Fraction(1), "sentence_gate", top_k=2),
)


def members(space: Space, graphs: Sequence[FFNGraph]) -> list[Architecture]:
    """Every architecture with these graphs whose sizes are in the space and within its budget, by brute force."""
    sizes = list(itertools.product(*(space.genes[name] for name in ("stack", "expansion", "experts"))))
    pairs = itertools.product(space.genes["heads"], space.genes["attention_experts"])
    attentions = [Attention(heads, count) for heads, count in pairs if count == 1 or heads == space.base.heads]
    # All sizes without an FFN are the same.
    options = [
        dict.fromkeys(
            Layer(attention, ffn)
            for attention in attentions
            for size in sizes
            if splits(ffn := FFN(graph, *size), space.base)
        )
        for graph in graphs
    ]
    every = (
        Architecture(space.base, layers, PredictionHead(count), Embedding(rank))
        for layers in itertools.product(*options)
        for count in space.genes["head_experts"]
        for rank in space.genes["rank"]
    )
    return [
        one
        for one in every
        if space.min_params <= cost.params(one, space.num_labels) <= space.max_params
        and all(limit.total(one) <= limit.maximum for limit in space.limits)
    ]


def splits(genes: FFN, base: Base) -> bool:
    """Whether the base has enough channels for each of the layer's experts."""
    inner = genes.inner(base)
    shared = int(genes.experts.shared * inner)
    return inner <= shared + (base.inner - shared) // genes.experts.count


def kinds_of_space(gated: bool = False) -> dict[str, Space]:
    """One small space of every kind."""
    macs = Limit("macs", 0, lambda base, layer: layer.ffn.stack * layer.ffn.inner(base), 100)
    found = {}
    for experts, high in (((DENSE,), HIGH), (ROUTED, 2 * HIGH)):
        both = small_space(LOW, high, mutation_rate=0.6, experts=experts)
        varied = replace(both, gated=gated, start=both.sample(random.Random(5)), mutation_rate=0.25)
        spaces = {
            "both": replace(both, gated=gated),
            "limited": replace(both, limits=(macs,), gated=gated, min_params=1),
            "graphs": replace(varied, min_params=1, vary=frozenset({GRAPHS})),
            "sizes": replace(varied, vary=frozenset({SIZES})),
        }
        found |= {name if experts == (DENSE,) else f"{name}, experts": space for name, space in spaces.items()}
    # What does not vary need not be among what the space has.
    found["graphs, experts"] = of_genes(found["graphs, experts"], experts=(DENSE,))
    for kind in ("both", "limited", "graphs", "sizes"):
        space = of_genes(replace(found[kind], min_params=1), stack=(0, 1, 2))
        if space.start is not None:
            space = replace(space, start=without_ffn(space.start, 1))
        found[f"{kind}, no FFN"] = space
    return found | of_attention_and_head() | of_heads(gated) | of_ranks()


def of_ranks() -> dict[str, Space]:
    """Spaces in which the rank of the word embedding varies."""
    genes = {"stack": (1, 2), "expansion": (Fraction(1), Fraction(1, 4)), "rank": (None, 4, 16)}
    space = replace(of_genes(small_space(1, 10**9), **genes), min_params=15_000, max_params=19_000)
    least = cost.macs(Architecture.uniform(space.base, expansion=Fraction(1, 4)), 8, 3)
    macs = Limit(
        "macs",
        cost.head_macs(space.base, PredictionHead(), 8, 3),
        lambda base, layer: cost.layer_macs(base, layer, 8),
        least + 10_000,
        embedding_cost=lambda base, embedding: cost.embedding_macs(base, embedding, 8),
    )
    start = replace(Architecture.uniform(space.base, expansion=Fraction(1, 2)), embedding=Embedding(8))
    return {
        "ranks": of_genes(replace(space, max_params=24_000), head_experts=(1, 3)),
        "ranks, limited": replace(space, min_params=1, limits=(macs,)),
        "ranks, graphs": replace(space, min_params=1, start=start, vary=frozenset({GRAPHS})),
        "ranks, sizes": replace(space, start=start, vary=frozenset({SIZES})),
    }


def of_heads(gated: bool = False) -> dict[str, Space]:
    """Spaces in which layers may have fewer heads, or neither heads nor an FFN."""
    genes = {"stack": (0, 1), "expansion": (Fraction(1), Fraction(1, 4)), "heads": (0, 4, 1)}
    space = replace(of_genes(small_space(1, 10**9), **genes), gated=gated, min_params=8_000, max_params=13_000)
    least = cost.macs(Architecture.uniform(space.base, stack=0).with_heads([0] * 3), 8, 3)
    macs = Limit("macs", 0, lambda base, layer: cost.layer_macs(base, layer, 8), least + 55_000)
    whole = Layer(Attention(4), FFN(FFNGraph.parse("project(relu(expand(x)))")))
    start = Architecture(space.base, (whole, Layer(Attention(0), FFN(stack=0)), replace(whole, attention=Attention(1))))
    refined = replace(space, min_params=1, start=start)
    return {
        "heads": space,
        "heads, limited": replace(space, min_params=1, max_params=10**6, limits=(macs,)),
        "heads, experts": of_genes(replace(space, max_params=10**6), attention_experts=(1, 2)),
        "heads, graphs": replace(refined, max_params=10**6, vary=frozenset({GRAPHS})),
        "heads, sizes": replace(refined, vary=frozenset({SIZES})),
    }


def of_attention_and_head() -> dict[str, Space]:
    """Spaces with experts of attention and head, and few other sizes."""
    genes = {"stack": (1,), "expansion": (Fraction(1), Fraction(1, 4)), "attention_experts": (4, 1, 2)}
    space = replace(of_genes(small_space(1, 10**9), **genes, head_experts=(1, 3)), min_params=20_000, max_params=40_000)
    start = Architecture.uniform(space.base, expansion=Fraction(1, 2), attention_experts=2)
    # With a gate in every attention, this does not leave enough for three prediction layers.
    least = cost.macs(Architecture.uniform(space.base, expansion=Fraction(1, 4)), 8, 3)
    macs = Limit(
        "macs",
        0,
        lambda base, layer: cost.layer_macs(base, layer, 8),
        least + 3000,
        lambda base, head: cost.head_macs(base, head, 8, 3),
    )
    return {
        "attention and head": space,
        "attention and head, limited": replace(space, min_params=1, max_params=10**6, limits=(macs,)),
        "attention and head, experts": of_genes(space, experts=(DENSE, Experts(2, Fraction(1), "token_gate"))),
        "attention": of_genes(space, head_experts=(1,)),
        "attention and head, sizes": replace(space, start=start, vary=frozenset({SIZES})),
    }


def without_ffn(architecture: Architecture, *layers: int) -> Architecture:
    """The architecture without the FFNs of these layers."""
    kept = (FFN(stack=0) if layer in layers else genes for layer, genes in enumerate(architecture.ffns))
    return architecture.with_ffns(kept)


def of_genes(space: Space, **choices: Sequence[object]) -> Space:
    """The space with other choices of some genes."""
    return replace(space, genes={**space.genes, **choices})


KINDS = [
    *(f"{kind}{more}" for more in ("", ", experts", ", no FFN") for kind in ("both", "limited", "graphs", "sizes")),
    *of_attention_and_head(),
    *of_heads(),
    *of_ranks(),
]
