"""Upper bounds on costs other than parameters."""

from collections.abc import Callable
from dataclasses import dataclass

from search_spaces.architecture import Architecture, Base, Genes


@dataclass(frozen=True)
class Limit:
    """An upper bound `maximum` on an integer cost that is additive over the layers.

    The cost of an architecture is `fixed` plus the sum of `of(base, genes)` over its layers. If experts of the
    attention and of the head change it, `fixed_of(base)` takes the place of `fixed`.
    """

    name: str
    fixed: int
    of: Callable[[Base, Genes], int]
    maximum: int
    fixed_of: Callable[[Base], int] | None = None

    def fixed_on(self, base: Base) -> int:
        """The cost of everything but the FFNs on this base."""
        return self.fixed if self.fixed_of is None else self.fixed_of(base)

    def total(self, architecture: Architecture) -> int:
        """The cost of an architecture."""
        layers = sum(self.of(architecture.base, genes) for genes in architecture.layers)
        return self.fixed_on(architecture.base) + layers
