"""Upper bounds on costs other than parameters."""

from collections.abc import Callable
from dataclasses import dataclass

from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import Head, Layer


def free_head(base: Base, head: Head) -> int:
    """The cost of a head where `Limit.fixed` includes it."""
    return 0


@dataclass(frozen=True)
class Limit:
    """An upper bound `maximum` on an integer cost that is additive over the layers and the head.

    Args:
        name: "macs", for the number of multiplications and additions; "latency", in microseconds; or "size", in bytes.
        fixed: the cost of everything else.
        layer_cost: the cost of a layer.
        maximum: the bound, in the unit of the cost.
        head_cost: the cost of a head.
    """

    name: str
    fixed: int
    layer_cost: Callable[[Base, Layer], int]
    maximum: int
    head_cost: Callable[[Base, Head], int] = free_head

    def cost(self, base: Base, part: Layer | Head) -> int:
        """The cost of a layer or of a head."""
        return self.head_cost(base, part) if isinstance(part, Head) else self.layer_cost(base, part)

    def in_words(self, cost: int) -> str:
        """A cost as users write it: a latency in milliseconds, a size in megabytes."""
        if self.name == "latency":
            return f"{cost / 1000:,.10g} ms"
        return f"{cost / 10**6:,.10g} MB" if self.name == "size" else f"{cost:,}"

    def total(self, architecture: Architecture) -> int:
        """The cost of an architecture."""
        return self.fixed + sum(self.cost(architecture.base, part) for part in architecture.parts)
