"""The encoding of architectures as feature vectors, for samplers that learn from scores."""

from collections.abc import Sequence
from functools import lru_cache
from math import log2, sqrt

import numpy as np

from search_spaces.architecture import Architecture, Experts, Genes
from search_spaces.base import Base
from search_spaces.graph import FFNGraph
from search_spaces.operations import BINARY, UNARY
from search_spaces.routing import ROUTINGS
from search_spaces.spaces import Space

SEGMENTS = ("pre", "mid", "post")
# The weights of features: of twice as many channels in a layer, of one more block, of an operation counted over all
# layers, and of an operation in a given layer.
DOUBLING, BLOCK, OPERATION, PLACED = sqrt(0.3), 0.5, 1.0, 0.5
# The weight of each number that describes experts, and of twice as many experts in every attention or in the head.
EXPERTS, WHOLE = 0.4, 1.0


def widths(space: Space) -> tuple[float, ...]:
    """The widths that a layer can have, ascending: the distinct `log_channels`."""
    sizes = (Genes(space.graph, *size) for size in space.sizes)
    return tuple(sorted({log_channels(genes, space.base) for genes in sizes}))


def log_channels(genes: Genes, base: Base) -> float:
    """The base-2 logarithm of a layer's inner channels, summed over its blocks; no FFN counts as one channel."""
    return log2(max(1, genes.stack * genes.inner(base)))


def counted_operations() -> tuple[str, ...]:
    """The operations that features count, also those that were added at run time."""
    return (*UNARY, *BINARY, "gate")


def encode(
    architectures: Sequence[Architecture], steps: tuple[float, ...], expert_counts: tuple[str, ...] = ()
) -> np.ndarray:
    """One row of features for each architecture. All have the same base, apart from the numbers of experts in attention
    and head; graphs and sizes may be any.

    The columns are:

    - for every layer, how far the logarithm of its inner channels is on the way from each of the `steps` (see `widths`)
      to the next. A linear model of these columns can be any function of a layer's width; its prior is a Brownian
      motion over the logarithm of the width;
    - the number of blocks of every layer, 0 without an FFN;
    - how often each operation occurs in each segment of the graphs (before `expand`, between the linear maps, after
      `project`), over all layers and in each layer;
    - the experts of every layer, all zero for a dense one;
    - the logarithm of each of the base's `expert_counts`, which are the fields that the space varies.
    """
    columns = counted_operations(), tuple(ROUTINGS), expert_counts
    return np.stack([_row(architecture, steps, *columns) for architecture in architectures], dtype=np.float32)


@lru_cache(maxsize=4096)
def _row(
    architecture: Architecture,
    steps: tuple[float, ...],
    operations: tuple[str, ...],
    routings: tuple[str, ...],
    expert_counts: tuple[str, ...],
) -> np.ndarray:
    below, gaps = np.array(steps[:-1]), np.diff(steps)
    width = np.array([[log_channels(genes, architecture.base)] for genes in architecture.layers])
    progress = np.clip((width - below) / gaps, 0, 1) * np.sqrt(gaps)
    blocks = [genes.stack for genes in architecture.layers]
    counts = np.stack([_counts(genes.graph, operations) * bool(genes.stack) for genes in architecture.layers])
    experts = np.array([_experts(genes.experts, routings) for genes in architecture.layers])
    whole = [log2(getattr(architecture.base, name)) for name in expert_counts]
    return np.concatenate(
        (
            DOUBLING * progress.ravel(),
            BLOCK * np.array(blocks),
            OPERATION * counts.sum(axis=0),
            PLACED * counts.ravel(),
            EXPERTS * experts.ravel(),
            WHOLE * np.array(whole),
        )
    )


@lru_cache(maxsize=4096)
def _counts(graph: FFNGraph, operations: tuple[str, ...]) -> np.ndarray:
    """How often each operation occurs in each segment of a graph: (segments * operations,)."""

    def segment(op: str, inputs: tuple[int, ...]) -> int:
        return {"expand": 1, "gate": 1, "project": 2}.get(op, max(inputs, default=0))

    counts = np.zeros((len(SEGMENTS), len(operations)))
    for node, row in zip(graph.nodes, graph.fold(segment), strict=True):
        if node.op in operations:
            counts[row, operations.index(node.op)] += 1
    return counts.ravel()


def _experts(experts: Experts, routings: tuple[str, ...]) -> tuple[float, ...]:
    """The features of a layer's experts, all zero for a dense layer."""
    one_hot = (float(experts.count > 1 and experts.routing == routing) for routing in routings)
    inverse_capacity = 0.0 if experts.capacity is None else float(1 / experts.capacity)
    return log2(experts.count), float(experts.shared), log2(experts.top_k), inverse_capacity, *one_hot
