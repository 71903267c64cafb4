"""Immutable architectures: the base model, the genes of every layer, and their JSON format.

{"version": 1, "base": {"depth": 6, "width": 540, ...},
 "layers": [{"graph": "project(gelu(expand(x)))", "stack": 1, "expansion": "1/2",
             "experts": {"count": 4, "shared": "2/3", "routing": "hash"}}, ...]}

Keys with a default value may be omitted, such as "experts" in a dense layer. A layer without an FFN is {"stack": 0}.
"""

import json
import os
from dataclasses import MISSING, asdict, dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from search_spaces.base import OF_EXPERTS, Base
from search_spaces.checks import (
    ArchitectureError,
    as_fraction,
    as_object,
    check_integer,
    refuse_constant,
    without_repeated_keys,
)
from search_spaces.errors import did_you_mean, shortened
from search_spaces.graph import GELU, FFNGraph, GraphError
from search_spaces.routing import ROUTINGS, RoutingKind

VERSION = 1
MAX_STACK = 16
MAX_BYTES = 1_000_000
LARGEST_COUNT = 64


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
        check_integer("experts.count", self.count, LARGEST_COUNT)
        check_integer("experts.top_k", self.top_k, LARGEST_COUNT)
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
            raise ArchitectureError(
                f"experts.top_k: must be at most experts.count, which is {self.count}, not {self.top_k}"
            )
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
        """JSON-serialisable values; the inverse of `from_json`."""
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
class Genes:
    """The searched properties of one layer's FFN: `stack` blocks of one graph, either dense or with several experts.

    The inner width of a block, or of each of its experts, is floor(expansion * inner width of the base). With `stack` =
    0 the layer has no FFN: its output is its attention's output. The other genes then mean nothing and take their
    default values, so that all such genes are equal.
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

    def problem(self, base: Base) -> str:
        """Why these genes are invalid on this base, starting with the gene's name; empty if they are valid."""
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


@dataclass(frozen=True)
class Architecture:
    """A base and the genes of all its layers, lowest first. Architectures are immutable and hashable.

    Raises:
        ArchitectureError: the number of layers is not the base's depth, or the genes of a layer are invalid on the
            base.
    """

    base: Base
    layers: tuple[Genes, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if len(self.layers) != self.base.depth:
            raise ArchitectureError(f"layers: {len(self.layers)} given, but base.depth is {self.base.depth}")
        for index, genes in enumerate(self.layers):
            if problem := genes.problem(self.base):
                raise ArchitectureError(f"layers[{index}].{problem}")

    @property
    def has_experts(self) -> bool:
        """Whether any FFN, the attention or the head has several experts."""
        several = max(self.base.attention_experts, self.base.head_experts) > 1
        return several or any(genes.experts != DENSE for genes in self.layers)

    @cached_property
    def _hash(self) -> int:
        return hash((self.base, self.layers))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Leave out the cached hash, which is different in another process.
        return type(self), (self.base, self.layers)

    @classmethod
    def uniform(
        cls,
        base: Base,
        graph: FFNGraph = GELU,
        stack: int = 1,
        expansion: Fraction | int = 1,
        experts: Experts = DENSE,
    ) -> "Architecture":
        """An architecture with the same genes in every layer; by default the base model itself."""
        return cls(base, (Genes(graph, stack, Fraction(expansion), experts),) * base.depth)

    def transferred(self, base: Base) -> "Architecture":
        """The same genes on another base. If that base is n times as deep, the genes of each layer are repeated for n
        consecutive layers, as EfficientBERT++ does with EfficientBERT's (n = 2).

        Raises:
            ArchitectureError: the base's depth is not a multiple of this one's, or the genes are invalid on it.
        """
        repeats, remainder = divmod(base.depth, self.base.depth)
        if remainder:
            raise ArchitectureError(
                f"the genes of {self.base.depth} layers can only be transferred to a multiple of that, not to "
                f"{base.depth} layers"
            )
        own = {name: getattr(self.base, name) for name in OF_EXPERTS}
        return Architecture(replace(base, **own), tuple(genes for genes in self.layers for _ in range(repeats)))

    def to_json(self) -> dict[str, Any]:
        """JSON-serialisable values; the inverse of `from_json`."""
        base = asdict(self.base)
        # Studies store keys derived from this JSON. Omitting these fields at their defaults keeps stored keys valid.
        for name, default in OF_EXPERTS.items():
            if base[name] == default:
                del base[name]
        layers = [
            {"graph": genes.graph.to_json(), "stack": genes.stack, "expansion": str(genes.expansion)}
            | ({} if genes.experts == DENSE else {"experts": genes.experts.to_json()})
            if genes.stack
            else {"stack": 0}
            for genes in self.layers
        ]
        return {"version": VERSION, "base": base, "layers": layers}

    @classmethod
    def from_json(cls, value: object) -> "Architecture":
        """The architecture from parsed JSON. Raises ArchitectureError."""
        document = as_object("the architecture", value, required=("version", "base", "layers"))
        version = document["version"]
        if isinstance(version, bool) or version != VERSION:
            raise ArchitectureError(f"version: {shortened(version)} is unknown; the supported version is {VERSION}")
        required = [field.name for field in fields(Base) if field.default is MISSING]
        optional = [field.name for field in fields(Base) if field.default is not MISSING]
        base = Base(**as_object("base", document["base"], required, optional))
        layers = document["layers"]
        if not isinstance(layers, list):
            raise ArchitectureError(f"layers: must be a list, not {shortened(layers)}")
        if len(layers) != base.depth:
            raise ArchitectureError(f"layers: {len(layers)} given, but base.depth is {base.depth}")
        return cls(base, tuple(_genes(f"layers[{index}]", layer) for index, layer in enumerate(layers)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Architecture":
        """The architecture in a JSON file. Raises ArchitectureError, whose message begins with the path."""
        try:
            with open(path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ArchitectureError(f"larger than {MAX_BYTES:,} bytes, so not an architecture")
            value = json.loads(
                content.decode("utf-8-sig"), object_pairs_hook=without_repeated_keys, parse_constant=refuse_constant
            )
            return cls.from_json(value)
        except ArchitectureError as error:
            reason = str(error)
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 text: {error.reason} at byte {error.start}"
        except RecursionError:
            reason = "nested too deeply, so not an architecture"
        except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
            reason = f"not JSON: {str(error).splitlines()[0]}"
        raise ArchitectureError(f"{os.fspath(path)}: {reason}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write indented JSON atomically: other processes never see a partial file."""
        path = Path(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)


def _genes(place: str, value: object) -> Genes:
    keys = ("graph", "stack", "expansion", "experts")
    required = 0 if isinstance(value, dict) and value.get("stack") == 0 else 1
    layer = as_object(place, value, keys[:required], keys[required:])
    try:
        graph = FFNGraph.from_json(layer["graph"], f"{place}.graph") if "graph" in layer else GELU
    except GraphError as error:
        raise ArchitectureError(str(error)) from None
    try:
        experts = Experts.from_json(layer["experts"]) if "experts" in layer else DENSE
        return Genes(graph, layer.get("stack", 1), as_fraction("expansion", layer.get("expansion", 1)), experts)
    except ArchitectureError as error:
        raise ArchitectureError(f"{place}.{error}") from None
