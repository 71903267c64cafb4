"""The searched parts of an architecture: each layer with its attention and its FFN, the prediction head, and the word
embedding.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from foundation.errors import did_you_mean, shortened
from search_spaces.base import LARGEST, MOST_EXPERTS, Base
from search_spaces.checks import ArchitectureError, as_fraction, as_object, check_integer, in_place
from search_spaces.graph import GELU, FFNGraph, GraphError
from search_spaces.routing import ROUTINGS, RoutingKind

MAX_STACK = 16


@dataclass(frozen=True)
class Experts:
    """The experts of each block of a layer, and how tokens are routed to them. A single expert means a dense layer.

    Every expert computes the layer's graph at the layer's inner width m with its own linear maps; the block's residual
    connection and LayerNorm are common to all of them. The experts are slices of a dense FFN of inner width e whose
    channels are sorted by importance (MoEBERT, section 3.1): all experts get the first s = floor(shared * m) channels,
    and expert i of E also gets every E-th of the other channels, starting with the i-th, until it has m channels. So
    `shared` = 2/3 at m = 768 is MoEBERT's s = 512, and `shared` = 1 makes E copies (MiniMoE).

    Args:
        count: number of experts, E.
        shared: fraction of an expert's channels that all experts have in common.
        routing: a name in `search_spaces.routing.ROUTINGS`: "hash", a random table from tokens to experts for every
            layer; "balanced_hash", a table that balances the tokens' frequencies; "token_gate" or "sentence_gate", a
            learned gate on the token's hidden state or on the mean over its sentence.
        top_k: number of experts that process each token. Their outputs are summed, weighted by the gate's probabilities
            (see `Base.gate_scale`) or, with hash routing, by 1 / top_k.
        capacity: an expert processes at most the first ceil(capacity * top_k * tokens / E) tokens of a sentence, or of
            a batch (see `Base.capacity_per`), that are routed to it. Tokens beyond that only pass through the residual
            connection. None means no limit.

    Raises:
        ArchitectureError: a value is of the wrong type or size, or is incompatible with the others.
    """

    count: int = 1
    shared: Fraction = Fraction(0)
    routing: str = "hash"
    top_k: int = 1
    capacity: Fraction | None = None

    def __post_init__(self) -> None:
        check_integer("experts.count", self.count, MOST_EXPERTS)
        check_integer("experts.top_k", self.top_k, MOST_EXPERTS)
        for name in ("shared", "capacity"):
            value = getattr(self, name)
            if name == "capacity" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | Fraction):
                raise ArchitectureError(f"experts.{name}: must be a Fraction, not {shortened(value)}")
            object.__setattr__(self, name, Fraction(value))
        if not 0 <= self.shared <= 1:
            raise ArchitectureError(f"experts.shared: must be from 0 to 1, not {self.shared}")
        if self.capacity is not None and self.capacity <= 0:
            raise ArchitectureError(f"experts.capacity: must be above 0, not {self.capacity}")
        if not isinstance(self.routing, str) or self.routing not in ROUTINGS:
            suggestion = did_you_mean(self.routing, ROUTINGS) if isinstance(self.routing, str) else ""
            known = suggestion or f"; known are {', '.join(ROUTINGS)}"
            raise ArchitectureError(f"experts.routing: unknown routing {shortened(self.routing)}{known}")
        if self.top_k > self.count:
            raise ArchitectureError(f"experts.top_k: {self.top_k} is more than experts.count ({self.count})")
        if self.capacity is not None and self.kind.by_sentence:
            raise ArchitectureError(
                f"experts.capacity: {self.routing!r} routes whole sentences, which have no capacity; leave it out"
            )
        if self.count == 1 and (self.shared, self.routing, self.capacity) != (0, "hash", None):
            raise ArchitectureError("experts: with count = 1 the layer is dense; leave out the other settings")

    @property
    def kind(self) -> RoutingKind:
        """The properties of the routing."""
        return ROUTINGS[self.routing]

    @property
    def gated(self) -> bool:
        """Whether the routing is learned."""
        return self.kind.learned

    def __str__(self) -> str:
        if self.count == 1:
            return "dense"
        parts = [f"{self.count} {self.routing}", f"shared {self.shared}"]
        parts += [f"top {self.top_k}"] if self.top_k > 1 else []
        return ", ".join(parts + ([f"capacity {self.capacity}"] if self.capacity is not None else []))

    def to_json(self) -> dict[str, Any]:
        """JSON-serializable values; the inverse of `from_json`."""
        if self.count == 1:
            return {"count": 1}
        value: dict[str, Any] = {"count": self.count, "shared": str(self.shared), "routing": self.routing}
        if self.top_k > 1:
            value["top_k"] = self.top_k
        return value | ({"capacity": str(self.capacity)} if self.capacity is not None else {})

    @classmethod
    def from_json(cls, value: object) -> "Experts":
        """The inverse of `to_json`. Raises ArchitectureError."""
        values = dict(as_object("experts", value, ("count",), ("shared", "routing", "top_k", "capacity")))
        for name in {"shared", "capacity"} & values.keys():
            values[name] = as_fraction(f"experts.{name}", values[name])
        return cls(**values)


DENSE = Experts()


@dataclass(frozen=True)
class FFN:
    """The feed-forward network of a layer: `stack` blocks of one graph, either dense or with several experts.

    The inner width of a block, or of each of its experts, is floor(expansion * inner width of the base). With `stack` =
    0 the layer has no FFN: its output is its attention's output. The other values then mean nothing and take their
    defaults, so that all such FFNs are equal.
    """

    graph: FFNGraph = GELU
    stack: int = 1
    expansion: Fraction = Fraction(1)
    experts: Experts = DENSE

    def __post_init__(self) -> None:
        if not isinstance(self.graph, FFNGraph):
            raise ArchitectureError(f"graph: must be an FFNGraph, not {shortened(self.graph)}")
        check_integer("stack", self.stack, MAX_STACK, smallest=0)
        if isinstance(self.expansion, bool) or not isinstance(self.expansion, int | Fraction):
            raise ArchitectureError(f"expansion: must be a Fraction, not {shortened(self.expansion)}")
        if not 0 < self.expansion <= 1:
            raise ArchitectureError(f"expansion: must be above 0 and at most 1, not {self.expansion}")
        object.__setattr__(self, "expansion", Fraction(self.expansion))
        if not isinstance(self.experts, Experts):
            raise ArchitectureError(f"experts: must be an Experts, not {shortened(self.experts)}")
        if not self.stack:
            self.__dict__.update(graph=GELU, expansion=Fraction(1), experts=DENSE)

    @property
    def formula(self) -> str:
        """The formula of the graph, or "no FFN"."""
        return str(self.graph) if self.stack else "no FFN"

    def inner(self, base: Base) -> int:
        """The inner width of this layer's blocks and of each of their experts, in channels; 0 without an FFN."""
        return self.expansion.numerator * base.inner // self.expansion.denominator if self.stack else 0

    def shared_channels(self, base: Base) -> int:
        """The number of inner channels that all experts have in common."""
        return self.experts.shared.numerator * self.inner(base) // self.experts.shared.denominator

    def max_inner(self, base: Base) -> int:
        """The largest possible inner width of an expert: the shared channels plus an equal part of the others."""
        shared = self.shared_channels(base)
        return shared + (base.inner - shared) // self.experts.count

    def invalid_reason(self, base: Base) -> str:
        """Why this FFN is invalid on this base, starting with the value's name; empty if it is valid."""
        inner = self.inner(base)
        if self.stack and inner < 1:
            return f"expansion: {self.expansion} of the inner width {base.inner} leaves no channel"
        if inner > self.max_inner(base):
            shared, count = f"{self.shared_channels(base):,}", self.experts.count
            bound = f"{shared} + ({base.inner:,} - {shared}) // {count} = {self.max_inner(base):,}"
            return (
                f"experts: {count} experts that share {shared} of {base.inner:,} channels have at most {bound} "
                f"channels each, not {inner:,}; lower the expansion, or share more"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        """JSON-serializable values; the inverse of `from_json`."""
        if not self.stack:
            return {"stack": 0}
        value = {"graph": str(self.graph), "stack": self.stack, "expansion": str(self.expansion)}
        return value | ({} if self.experts == DENSE else {"experts": self.experts.to_json()})

    @classmethod
    def from_json(cls, place: str, value: object) -> "FFN":
        """The inverse of `to_json`. Raises ArchitectureError, which names the `place` in the file."""
        keys = ("graph", "stack", "expansion", "experts")
        required = 0 if isinstance(value, dict) and value.get("stack") == 0 else 1
        values = as_object(place, value, keys[:required], keys[required:])
        try:
            graph = FFNGraph.parse(values["graph"]) if "graph" in values else GELU
        except GraphError as error:
            raise ArchitectureError(f"{place}.graph: {error}") from None
        with in_place(place):
            experts = Experts.from_json(values["experts"]) if "experts" in values else DENSE
            return cls(graph, values.get("stack", 1), as_fraction("expansion", values.get("expansion", 1)), experts)


@dataclass(frozen=True)
class Attention:
    """The attention of a layer.

    Args:
        heads: the number of heads kept, from 0 to `Base.heads`; each keeps its size. Without heads nothing is left of
            the attention but the bias of its output projection and its LayerNorm.
        experts: number of experts. Every expert has its own query, key, value and output projections, and a gate
            chooses one expert for each token (this is the x of MiniMoE's "x,y experts"). With several experts, all
            heads are kept.
    """

    heads: int
    experts: int = 1

    def __post_init__(self) -> None:
        check_integer("attention.heads", self.heads, 65_536, smallest=0)
        check_integer("attention.experts", self.experts, MOST_EXPERTS)

    def invalid_reason(self, base: Base) -> str:
        """Why this attention is invalid on this base, starting with the value's name; empty if it is valid."""
        if self.heads > base.heads:
            return f"heads: {self.heads} is more than base.heads ({base.heads})"
        if self.experts > 1 and self.heads < base.heads:
            return f"experts: attention with {self.experts} experts needs all {base.heads} heads, not {self.heads}"
        return ""


@dataclass(frozen=True)
class Layer:
    """A Transformer layer. With neither heads nor an FFN it is left out: its output is its input."""

    attention: Attention
    ffn: FFN = FFN()

    @property
    def left_out(self) -> bool:
        """Whether nothing is left of it, not even its LayerNorms."""
        return not self.attention.heads and not self.ffn.stack

    def invalid_reason(self, base: Base) -> str:
        """Why this layer is invalid on this base, starting with the place of the value; empty if it is valid."""
        for name, part in (("attention", self.attention), ("ffn", self.ffn)):
            if reason := part.invalid_reason(base):
                return f"{name}.{reason}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """JSON-serializable values; the inverse of `from_json`."""
        experts = {"experts": self.attention.experts} if self.attention.experts > 1 else {}
        return {"attention": {"heads": self.attention.heads} | experts, "ffn": self.ffn.to_json()}

    @classmethod
    def from_json(cls, place: str, value: object, base: Base) -> "Layer":
        """The inverse of `to_json`; an omitted attention has all heads. Raises ArchitectureError."""
        values = as_object(place, value, ("ffn",), ("attention",))
        attention = as_object(f"{place}.attention", values.get("attention", {}), (), ("heads", "experts"))
        with in_place(place):
            kept = Attention(**{"heads": base.heads, **attention})
        return cls(kept, FFN.from_json(f"{place}.ffn", values["ffn"]))


@dataclass(frozen=True)
class PredictionHead:
    """The prediction head.

    Args:
        experts: number of prediction layers of a classifier, among which a gate chooses one for each sentence
            (MicroBERT, equations 4 and 5); 1 is the usual linear classifier.
    """

    experts: int = 1

    def __post_init__(self) -> None:
        check_integer("head.experts", self.experts, MOST_EXPERTS)

    def to_json(self) -> dict[str, Any]:
        """JSON-serializable values; the inverse of `from_json`."""
        return {"experts": self.experts}

    @classmethod
    def from_json(cls, value: object) -> "PredictionHead":
        """The inverse of `to_json`. Raises ArchitectureError."""
        return cls(**as_object("head", value, (), ("experts",)))


@dataclass(frozen=True)
class Embedding:
    """The word embedding.

    Args:
        rank: the width of the embedding's table, whose rows a projection without bias takes to the width of the model;
            None: the table itself has the width of the model.
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        if self.rank is not None:
            check_integer("embedding.rank", self.rank, LARGEST["width"])

    def invalid_reason(self, base: Base) -> str:
        """Why this embedding is invalid on this base, starting with the value's name; empty if it is valid."""
        if self.rank is None:
            return ""
        if base.embedding is not None:
            return "rank: base.embedding already factorizes the word embedding; remove the rank, or base.embedding"
        if self.rank >= base.width:
            return f"rank: {self.rank} is not below base.width ({base.width})"
        return ""

    def to_json(self) -> dict[str, Any]:
        """JSON-serializable values; the inverse of `from_json`."""
        return {"rank": self.rank}

    @classmethod
    def from_json(cls, value: object) -> "Embedding":
        """The inverse of `to_json`. Raises ArchitectureError."""
        return cls(**as_object("embedding", value, (), ("rank",)))


FULL = Embedding()
