"""The encoding of architectures as feature vectors, for samplers that learn from scores."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from search_spaces.architecture import Architecture
from search_spaces.genes import GENES, counted_operations, log_channels
from search_spaces.routing import ROUTINGS
from search_spaces.spaces import Space

FFN_GENES = tuple(name for name, gene in GENES.items() if gene.of_ffn)


def widths(space: Space) -> tuple[float, ...]:
    """The widths that a layer can have, ascending: the distinct `log_channels`."""
    return tuple(sorted({log_channels(layer.ffn, space.base) for layer in space.sizes}))


def encoded_genes(space: Space) -> tuple[str, ...]:
    """The genes that an encoding shows: those of the FFN, and those others that the space varies."""
    return (*FFN_GENES, *(name for name in GENES if name not in FFN_GENES and space.varies(name)))


def encode(
    architectures: Sequence[Architecture], steps: tuple[float, ...], genes: tuple[str, ...] = FFN_GENES
) -> np.ndarray:
    """One row of features for each architecture: the `Gene.features` of these genes. All have the same base; graphs and
    sizes may be any.

    Args:
        steps: the widths that a layer can have, see `widths`.
    """
    # Operations and routings may have been added since an architecture was encoded.
    columns = counted_operations(), tuple(ROUTINGS)
    return np.stack([_row(architecture, steps, genes, columns) for architecture in architectures], dtype=np.float32)


@lru_cache(maxsize=4096)
def _row(
    architecture: Architecture, steps: tuple[float, ...], genes: tuple[str, ...], columns: tuple[tuple[str, ...], ...]
) -> np.ndarray:
    features = (
        gene.features(gene.parts(architecture), architecture.base, steps) for gene in (GENES[name] for name in genes)
    )
    return np.concatenate(list(features))
