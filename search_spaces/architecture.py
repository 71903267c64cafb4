"""What is searched for: the base model, the genes of each layer, the architecture they make, and its JSON.

{"version": 1, "base": {"depth": 6, "width": 540, ...},
 "layers": [{"graph": "project(gelu(expand(x)))", "stack": 1, "expansion": "1/2",
             "experts": {"count": 4, "shared": "2/3", "routing": "hash"}}, ...]}

Keys that have a default can be left out, as "experts" is for a dense layer.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from search_spaces.errors import UserError, did_you_mean, shown
from search_spaces.graph import GELU, MISMATCH, FFNGraph, GraphError
from search_spaces.numbers import fraction
from search_spaces.routing import ROUTINGS, RoutingKind

VERSION = 1
MAX_STACK = 16
MAX_BYTES = 1_000_000
# Far above any encoder there is, and low enough that sizes stay sums a machine can hold.
LARGEST = {
    "depth": 256,
    "width": 65_536,
    "heads": 65_536,
    "inner": 1_048_576,
    "vocabulary": 16_777_216,
    "positions": 1_048_576,
    "token_types": 65_536,
    "embedding": 65_536,
    "attention_experts": 64,
    "head_experts": 64,
}
LARGEST_COUNT = 64


class ArchitectureError(UserError, ValueError):
    """A value or file is no architecture; the message starts with the place of the fault."""


def _check_integer(place: str, value: object, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArchitectureError(f"{place}: must be a whole number, not {shown(value)}")
    if not 1 <= value <= largest:
        raise ArchitectureError(f"{place}: must be from 1 to {largest:,}, not {shown(value)}")


@dataclass(frozen=True)
class Base:
    """The parts of the encoder that are not searched. Raises ArchitectureError.

    depth: Transformer layers. width: d. heads: attention heads. inner: the FFN's channels at expansion 1.
    embedding: None for BERT's word embedding of full width; a size for MobileBERT's factorised one, where the
    embeddings of the previous, this and the next word are concatenated and mapped to the width.
    gelu: the form of the operation `gelu`, "tanh" or "erf" (a base copied from a model with the exact one).
    mismatch: how a binary operation treats different widths, see `FFNGraph.widths`.
    attention_experts: attentions that every layer has; a gate sends each token through the query, key, value and
    output maps of one of them (MiniMoE's "x,y experts": this is x).
    head_experts: prediction layers of a classifier, to one of which a gate sends each sentence (MicroBERT, equations 4
    and 5); 1 is the usual linear map.
    """

    depth: int
    width: int
    heads: int
    inner: int
    vocabulary: int = 30522
    positions: int = 512
    token_types: int = 2
    embedding: int | None = None
    gelu: str = "tanh"
    mismatch: str = "narrow"
    attention_experts: int = 1
    head_experts: int = 1

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            value = getattr(self, name)
            if name == "embedding" and value is None:
                continue
            _check_integer(f"base.{name}", value, largest)
        for name, choices in (("gelu", ("tanh", "erf")), ("mismatch", MISMATCH)):
            value = getattr(self, name)
            if value not in choices:
                expected = " or ".join(map(repr, choices))
                raise ArchitectureError(f"base.{name}: must be {expected}, not {shown(value)}")
        if self.width % self.heads:
            raise ArchitectureError(f"base.heads: {self.heads} heads do not divide the width {self.width}")


@dataclass(frozen=True)
class Experts:
    """How many experts each block of a layer has, and which of them a token passes. One expert is a dense layer.

    An expert computes the layer's graph at the layer's inner width m, with linear maps of its own; the residual and
    the LayerNorm are outside. Cut from a dense FFN of inner width e, whose channels are in order of importance
    (MoEBERT, section 3.1), all experts have its first s = floor(shared * m) channels, and expert i of E every E-th of
    the others from the i-th on, up to m in all. So `shared` = 2/3 at m = 768 is MoEBERT's s = 512, and 1 makes E
    copies (MiniMoE).

    routing: a name in `search_spaces.routing.ROUTINGS`: "hash", a random table from tokens to experts for every layer;
    "balanced_hash", a table that shares out the tokens' frequencies; "token_gate" and "sentence_gate", learned, by the
    token or by the mean over its sentence.
    top_k: experts that a token passes; their outputs are added up, weighted by a gate's probabilities or, with a hash,
    by 1 / top_k.
    capacity: an expert takes at most ceil(capacity * top_k * tokens / E) tokens of a sentence, the first ones;
    the others have the residual alone. None: it takes all.
    """

    count: int = 1
    shared: Fraction = Fraction(0)
    routing: str = "hash"
    top_k: int = 1
    capacity: Fraction | None = None

    def __post_init__(self) -> None:
        _check_integer("experts.count", self.count, LARGEST_COUNT)
        _check_integer("experts.top_k", self.top_k, LARGEST_COUNT)
        for name in ("shared", "capacity"):
            value = getattr(self, name)
            if name == "capacity" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | Fraction):
                raise ArchitectureError(f"experts.{name}: must be a Fraction, not {shown(value)}")
            object.__setattr__(self, name, Fraction(value))
        if not 0 <= self.shared <= 1:
            raise ArchitectureError(f"experts.shared: must be from 0 to 1, not {self.shared}")
        if self.capacity is not None and self.capacity <= 0:
            raise ArchitectureError(f"experts.capacity: must be above 0, not {self.capacity}")
        if not isinstance(self.routing, str) or self.routing not in ROUTINGS:
            hint = did_you_mean(self.routing, ROUTINGS) if isinstance(self.routing, str) else ""
            known = hint or f"; known are {', '.join(ROUTINGS)}"
            raise ArchitectureError(f"experts.routing: unknown routing {shown(self.routing)}{known}")
        if self.top_k > self.count:
            raise ArchitectureError(f"experts.top_k: {self.top_k} of {self.count} experts")
        if self.capacity is not None and self.kind.by_sentence:
            raise ArchitectureError(f"experts.capacity: {self.routing!r} sends whole sentences; leave it out")
        if self.count == 1 and (self.shared, self.routing, self.capacity) != (0, "hash", None):
            raise ArchitectureError("experts: one expert is a dense layer, which has no other settings")

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
        """Values that `json.dumps` takes; the inverse of `from_json`."""
        if self.count == 1:
            return {"count": 1}
        value: dict[str, Any] = {"count": self.count, "shared": str(self.shared), "routing": self.routing}
        if self.top_k > 1:
            value["top_k"] = self.top_k
        return value | ({"capacity": str(self.capacity)} if self.capacity is not None else {})

    @classmethod
    def from_json(cls, value: object) -> "Experts":
        """The inverse of `to_json`. Raises ArchitectureError."""
        given = dict(_object("experts", value, ("count",), ("shared", "routing", "top_k", "capacity")))
        for name in {"shared", "capacity"} & given.keys():
            given[name] = _fraction(f"experts.{name}", given[name])
        return cls(**given)


DENSE = Experts()


@dataclass(frozen=True)
class Genes:
    """One layer's FFN: `stack` blocks of the same graph, each floor(expansion * base inner width) channels
    wide, dense or split into experts of that width.
    """

    graph: FFNGraph
    stack: int = 1
    expansion: Fraction = Fraction(1)
    experts: Experts = DENSE

    def __post_init__(self) -> None:
        if not isinstance(self.graph, FFNGraph):
            raise ArchitectureError(f"graph: must be an FFNGraph, not {shown(self.graph)}")
        _check_integer("stack", self.stack, MAX_STACK)
        if isinstance(self.expansion, bool) or not isinstance(self.expansion, int | Fraction):
            raise ArchitectureError(f"expansion: must be a Fraction, not {shown(self.expansion)}")
        if not 0 < self.expansion <= 1:
            raise ArchitectureError(f"expansion: must be above 0 and at most 1, not {self.expansion}")
        object.__setattr__(self, "expansion", Fraction(self.expansion))
        if not isinstance(self.experts, Experts):
            raise ArchitectureError(f"experts: must be an Experts, not {shown(self.experts)}")

    def inner(self, base: Base) -> int:
        """The inner width of this layer's blocks and of each of their experts, in channels."""
        return self.expansion.numerator * base.inner // self.expansion.denominator

    def shared(self, base: Base) -> int:
        """The inner channels that all experts begin with."""
        return self.experts.shared.numerator * self.inner(base) // self.experts.shared.denominator

    def most(self, base: Base) -> int:
        """The inner channels that an expert can have at most: those shared, and its part of the base's others."""
        shared = self.shared(base)
        return shared + (base.inner - shared) // self.experts.count

    def fault(self, base: Base) -> str:
        """Why a layer of this base cannot have these genes, after the name of the gene; empty if it can."""
        inner = self.inner(base)
        if inner < 1:
            return f"expansion: {self.expansion} of the inner width {base.inner} leaves no channel"
        if inner > self.most(base):
            shared, count = f"{self.shared(base):,}", self.experts.count
            most = f"{shared} + ({base.inner:,} - {shared}) // {count} = {self.most(base):,}"
            return (
                f"experts: {count} experts that share {shared} of {base.inner:,} channels have at most {most} channels "
                f"each, not {inner:,}; lower the expansion, or share more"
            )
        return ""


@dataclass(frozen=True)
class Architecture:
    """A base and the genes of all its layers, lowest first; a hashable value. Raises ArchitectureError."""

    base: Base
    layers: tuple[Genes, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if len(self.layers) != self.base.depth:
            raise ArchitectureError(f"layers: {len(self.layers)} given, but base.depth is {self.base.depth}")
        for place, genes in enumerate(self.layers):
            if fault := genes.fault(self.base):
                raise ArchitectureError(f"layers[{place}].{fault}")

    @cached_property
    def _hash(self) -> int:
        return hash((self.base, self.layers))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the hash, which another process computes differently.
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
        """The same genes in every layer; by default the base model itself."""
        return cls(base, (Genes(graph, stack, Fraction(expansion), experts),) * base.depth)

    def transferred(self, base: Base) -> "Architecture":
        """The same genes on another base, each layer's for as many layers as the depth has grown (EfficientBERT++ uses
        those of EfficientBERT's twice).

        Raises:
            ArchitectureError: its depth is no multiple of this one's, or a layer of it cannot have these genes.
        """
        times, rest = divmod(base.depth, self.base.depth)
        if rest:
            raise ArchitectureError(f"the genes of {self.base.depth} layers cannot be shared out to {base.depth}")
        return Architecture(base, tuple(genes for genes in self.layers for _ in range(times)))

    def to_json(self) -> dict[str, Any]:
        """Values that `json.dumps` takes; the inverse of `from_json`."""
        base = asdict(self.base)
        # Studies store keys that are made of this; what an architecture does not have is left out of them.
        for name in ("attention_experts", "head_experts"):
            if base[name] == 1:
                del base[name]
        layers = [
            {"graph": genes.graph.to_json(), "stack": genes.stack, "expansion": str(genes.expansion)}
            | ({} if genes.experts == DENSE else {"experts": genes.experts.to_json()})
            for genes in self.layers
        ]
        return {"version": VERSION, "base": base, "layers": layers}

    @classmethod
    def from_json(cls, value: object) -> "Architecture":
        """The architecture from parsed JSON. Raises ArchitectureError."""
        top = _object("the architecture", value, required=("version", "base", "layers"))
        version = top["version"]
        if isinstance(version, bool) or version != VERSION:
            raise ArchitectureError(f"version: {shown(version)} is unknown; this is for version {VERSION}")
        required = [field.name for field in fields(Base) if field.default is MISSING]
        optional = [field.name for field in fields(Base) if field.default is not MISSING]
        base = Base(**_object("base", top["base"], required, optional))
        layers = top["layers"]
        if not isinstance(layers, list):
            raise ArchitectureError(f"layers: must be a list, not {shown(layers)}")
        if len(layers) != base.depth:
            raise ArchitectureError(f"layers: {len(layers)} given, but base.depth is {base.depth}")
        return cls(base, tuple(_genes(f"layers[{place}]", layer) for place, layer in enumerate(layers)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Architecture":
        """Read a file that `save` or a person wrote. Raises ArchitectureError, starting with the path."""
        try:
            with open(path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ArchitectureError(f"larger than {MAX_BYTES:,} bytes; this is no architecture")
            value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_distinct, parse_constant=_no_constant)
            return cls.from_json(value)
        except ArchitectureError as error:
            reason = str(error)
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 text: {error.reason} at byte {error.start}"
        except RecursionError:
            reason = "nested too deeply; this is no architecture"
        except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
            reason = f"not JSON: {str(error).splitlines()[0]}"
        raise ArchitectureError(f"{os.fspath(path)}: {reason}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write readable JSON. The file appears whole or not at all."""
        path = Path(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)


def _genes(place: str, value: object) -> Genes:
    layer = _object(place, value, required=("graph",), optional=("stack", "expansion", "experts"))
    try:
        graph = FFNGraph.from_json(layer["graph"], f"{place}.graph")
    except GraphError as error:
        raise ArchitectureError(str(error)) from None
    try:
        experts = Experts.from_json(layer["experts"]) if "experts" in layer else DENSE
        return Genes(graph, layer.get("stack", 1), _fraction("expansion", layer.get("expansion", 1)), experts)
    except ArchitectureError as error:
        raise ArchitectureError(f"{place}.{error}") from None


def _fraction(place: str, value: object) -> Fraction:
    try:
        return fraction(value)
    except ValueError as error:
        raise ArchitectureError(f"{place}: {error}") from None


def _object(place: str, value: object, required: Sequence[str], optional: Sequence[str] = ()) -> Mapping[str, Any]:
    """`value`, if it is a JSON object with all required keys and no unknown ones."""
    if not isinstance(value, dict):
        raise ArchitectureError(f"{place}: must be a JSON object, not {shown(value)}")
    known = (*required, *optional)
    for key in value:
        if key not in known:
            hint = did_you_mean(str(key), known) or f"; known are {', '.join(known)}"
            raise ArchitectureError(f"{place}: unknown key {shown(key)}{hint}")
    for key in required:
        if key not in value:
            raise ArchitectureError(f"{place}: the key {key!r} is missing")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ArchitectureError(f"the key {shown(twice)} occurs twice in one object")
    return result


def _no_constant(name: str) -> None:
    raise ArchitectureError(f"{name} is not a number that JSON has")
