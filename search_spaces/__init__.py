"""What an architecture is: operations, graphs, genes, their cost, and the spaces they are searched in.

Values only: nothing here needs a deep-learning library.
"""

__version__ = "0.1.0"

from search_spaces.architecture import DENSE, Architecture, ArchitectureError, Base, Experts, Genes
from search_spaces.graph import GELU, FFNGraph, GraphError, Node, breaks_rules
from search_spaces.operations import BINARY, OPERATIONS, UNARY, Operation
from search_spaces.published import PUBLISHED
from search_spaces.spaces import Space, SpaceError

__all__ = [
    "BINARY",
    "DENSE",
    "GELU",
    "OPERATIONS",
    "PUBLISHED",
    "UNARY",
    "Architecture",
    "ArchitectureError",
    "Base",
    "Experts",
    "FFNGraph",
    "Genes",
    "GraphError",
    "Node",
    "Operation",
    "Space",
    "SpaceError",
    "breaks_rules",
]
