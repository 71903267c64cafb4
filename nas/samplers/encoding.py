"""Architectures as vectors, for what samplers learn from scores."""

from collections.abc import Sequence
from functools import lru_cache
from math import log2

import numpy as np

from search_spaces.architecture import Architecture, Base, Genes
from search_spaces.graph import FFNGraph
from search_spaces.operations import BINARY, UNARY

OPERATIONS = (*UNARY, *BINARY, "gate")
SEGMENTS = ("pre", "mid", "post")
# An operation in one certain layer says less than how many layers have it.
PLACED = 0.5


def encode(architectures: Sequence[Architecture]) -> np.ndarray:
    """A row for each architecture of one base, any graphs and sizes, in which differences that matter are about 1.

    Of every layer the logarithm to base 2 of all its inner channels, since halving a layer matters as much at any
    width, and half the number of its blocks. How often each operation occurs in each segment of the graphs (before
    `expand`, between the linear maps, after `project`), in all layers and, weighted by PLACED, in each.
    """
    return np.stack([_row(architecture) for architecture in architectures])


@lru_cache(maxsize=65_536)
def _row(architecture: Architecture) -> np.ndarray:
    sizes = [_sizes(architecture.base, genes) for genes in architecture.layers]
    counts = np.stack([_counts(genes.graph) for genes in architecture.layers])
    return np.concatenate((np.ravel(sizes), counts.sum(axis=0), PLACED * counts.ravel()))


def _sizes(base: Base, genes: Genes) -> tuple[float, float]:
    return log2(genes.stack * genes.inner(base)), genes.stack / 2


@lru_cache(maxsize=65_536)
def _counts(graph: FFNGraph) -> np.ndarray:
    """How often each operation occurs in each segment."""

    def segment(op: str, inputs: tuple[int, ...]) -> int:
        return {"expand": 1, "gate": 1, "project": 2}.get(op, max(inputs, default=0))

    counts = np.zeros((len(SEGMENTS), len(OPERATIONS)))
    for node, place in zip(graph.nodes, graph.fold(segment), strict=True):
        if node.op in OPERATIONS:
            counts[place, OPERATIONS.index(node.op)] += 1
    return counts.ravel()
