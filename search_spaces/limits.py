"""Upper bounds on costs other than parameters."""

from collections.abc import Callable
from dataclasses import dataclass

from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import Embedding, Layer, PredictionHead


def free(base: Base, part: PredictionHead | Embedding) -> int:
    """The cost of a head or an embedding where `Limit.fixed` includes it."""
    return 0


@dataclass(frozen=True)
class Limit:
    """An upper bound `maximum` on an integer cost that is additive over the layers, the head and the word embedding.

    Args:
        name: "macs", in multiply-accumulates for a sentence of 128 tokens; "latency", in microseconds; or "size", in
            bytes.
        fixed: the cost of everything else.
        layer_cost: the cost of a layer.
        maximum: the bound, in the unit of the cost.
        head_cost, embedding_cost: the cost of a head, and of an embedding.
    """

    name: str
    fixed: int
    layer_cost: Callable[[Base, Layer], int]
    maximum: int
    head_cost: Callable[[Base, PredictionHead], int] = free
    embedding_cost: Callable[[Base, Embedding], int] = free

    def cost(self, base: Base, part: Layer | PredictionHead | Embedding) -> int:
        """The cost of a part of an architecture."""
        if isinstance(part, Layer):
            return self.layer_cost(base, part)
        return self.head_cost(base, part) if isinstance(part, PredictionHead) else self.embedding_cost(base, part)

    def rounded_up(self, cost: int) -> str:
        """A cost in words, of which four digits are enough, and which would do as the maximum."""
        unit = 10 ** max(0, len(str(cost)) - 4)
        return self.in_words(-(-cost // unit) * unit)

    def in_words(self, cost: int) -> str:
        """A cost as users write it: a latency in milliseconds, a size in megabytes."""
        if self.name == "latency":
            return f"{cost / 1000:,.10g} ms"
        return f"{cost / 10**6:,.10g} MB" if self.name == "size" else f"{cost:,}"

    def total(self, architecture: Architecture) -> int:
        """The cost of an architecture."""
        return self.fixed + sum(self.cost(architecture.base, part) for part in architecture.parts)
