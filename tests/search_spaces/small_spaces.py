"""One small space of every kind, and all its sizes by brute force."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from search_spaces import DENSE, FFN, Architecture, Base, Experts, FFNGraph, Space, cost
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


def all_sizes(space: Space, graphs: Sequence[FFNGraph]) -> list[tuple[FFN, ...]]:
    """Every combination of sizes within the budget, by brute force."""
    choices = list(itertools.product(*(space.genes[name] for name in ("stack", "expansion", "experts"))))
    # All sizes without an FFN are the same.
    options = [{genes for size in choices if splits(genes := FFN(graph, *size), space.base)} for graph in graphs]
    return [
        layers
        for layers in itertools.product(*options)
        if space.min_params <= cost.params(Architecture.of_ffns(space.base, layers), space.labels) <= space.max_params
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
    return found


def without_ffn(architecture: Architecture, *layers: int) -> Architecture:
    """The architecture without the FFNs of these layers."""
    kept = (FFN(stack=0) if layer in layers else genes for layer, genes in enumerate(architecture.ffns))
    return architecture.with_ffns(kept)


def of_genes(space: Space, **choices: Sequence[object]) -> Space:
    """The space with other choices of some genes."""
    return replace(space, genes={**space.genes, **choices})


KINDS = [f"{kind}{more}" for more in ("", ", experts", ", no FFN") for kind in ("both", "limited", "graphs", "sizes")]
