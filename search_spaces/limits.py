"""Upper bounds on costs other than parameters."""

from collections.abc import Callable
from dataclasses import dataclass

from search_spaces.architecture import Architecture, Genes
from search_spaces.base import Base


@dataclass(frozen=True)
class Limit:
    """An upper bound `maximum` on an integer cost that is additive over the layers.

    Args:
        name: "macs", for the number of multiplications and additions, or "latency", in microseconds.
        fixed: the cost of everything but the FFNs.
        layer_cost: the cost of a layer's FFNs; an architecture costs `fixed` plus the sum over its layers.
        maximum: the bound, in the unit of the cost.
        fixed_cost: if given, it is used instead of `fixed`, which is then its value for the baselines' base: experts in
            attention and head change the cost.
    """

    name: str
    fixed: int
    layer_cost: Callable[[Base, Genes], int]
    maximum: int
    fixed_cost: Callable[[Base], int] | None = None

    def fixed_on(self, base: Base) -> int:
        """The cost of everything but the FFNs on this base."""
        return self.fixed if self.fixed_cost is None else self.fixed_cost(base)

    def in_words(self, cost: int) -> str:
        """A cost as users write it: a latency in milliseconds."""
        return f"{cost / 1000:,.10g} ms" if self.name == "latency" else f"{cost:,}"

    def total(self, architecture: Architecture) -> int:
        """The cost of an architecture."""
        layers = sum(self.layer_cost(architecture.base, genes) for genes in architecture.layers)
        return self.fixed_on(architecture.base) + layers
