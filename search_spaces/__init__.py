"""Architectures and the search spaces they come from: operations, FFN graphs, genes and costs.

This package consists of plain values and does not need a deep-learning library. The names below are imported lazily, on
first use, so that importing one of its modules does not wait for those of the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from search_spaces.architecture import Architecture, ArchitectureError
    from search_spaces.base import Base
    from search_spaces.graph import GELU, FFNGraph, GraphError
    from search_spaces.layer import DENSE, FFN, Attention, Embedding, Experts, Layer, PredictionHead
    from search_spaces.operations import BINARY, OPERATIONS, UNARY, Operation
    from search_spaces.published import PUBLISHED
    from search_spaces.spaces import Space, SpaceError

DISTRIBUTION = "ffn-nas"

__all__ = [
    "BINARY",
    "DENSE",
    "FFN",
    "GELU",
    "OPERATIONS",
    "PUBLISHED",
    "UNARY",
    "Architecture",
    "ArchitectureError",
    "Attention",
    "Base",
    "Embedding",
    "Experts",
    "FFNGraph",
    "GraphError",
    "Layer",
    "Operation",
    "PredictionHead",
    "Space",
    "SpaceError",
]
_MODULES = {
    "architecture": ("Architecture", "ArchitectureError"),
    "base": ("Base",),
    "graph": ("GELU", "FFNGraph", "GraphError"),
    "layer": ("DENSE", "FFN", "Attention", "Embedding", "Experts", "PredictionHead", "Layer"),
    "operations": ("BINARY", "OPERATIONS", "UNARY", "Operation"),
    "published": ("PUBLISHED",),
    "spaces": ("Space", "SpaceError"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
