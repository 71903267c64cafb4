"""Immutable architectures: the base model, its layers, its head and its word embedding, and their JSON format.

{"version": 2, "base": {"depth": 6, "width": 540, ...},
 "layers": [{"attention": {"heads": 12},
             "ffn": {"graph": "project(gelu(expand(x)))", "stack": 1, "expansion": "1/2",
                     "experts": {"count": 4, "shared": "2/3", "routing": "hash"}}}, ...],
 "head": {"experts": 1}, "embedding": {"rank": 128}}

Keys with a default value may be omitted, such as "experts" in a dense FFN; an omitted attention has all heads, and an
omitted embedding the full rank. In a layer without an FFN, "ffn" is {"stack": 0}. In version 1 a layer is its FFN, each
attention has as many experts as the key "attention_experts" of the base says, and the head as many as "head_experts".
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from foundation.errors import shortened
from foundation.files import write_text
from search_spaces.base import MOST_EXPERTS, Base
from search_spaces.checks import ArchitectureError, as_object, check_integer, refuse_constant, without_repeated_keys
from search_spaces.graph import GELU, FFNGraph
from search_spaces.layer import DENSE, FFN, FULL, Attention, Embedding, Experts, Layer, PredictionHead

VERSION = 2
MAX_BYTES = 1_000_000
SEARCHED = "searched"  # the key of what is said of the search in a file
REQUIRED = [field.name for field in fields(Base) if field.default is MISSING]
OPTIONAL = [field.name for field in fields(Base) if field.default is not MISSING]
LINEAR_HEAD = PredictionHead()


@dataclass(frozen=True)
class Architecture:
    """A base, all its layers, lowest first, its head and its word embedding. Architectures are immutable and hashable.

    Raises:
        ArchitectureError: the number of layers is not the base's depth, or a layer or the embedding is invalid on
            the base.
    """

    base: Base
    layers: tuple[Layer, ...]
    head: PredictionHead = LINEAR_HEAD
    embedding: Embedding = FULL

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if len(self.layers) != self.base.depth:
            raise ArchitectureError(f"layers: {len(self.layers)} given, but base.depth is {self.base.depth}")
        for index, layer in enumerate(self.layers):
            if reason := layer.invalid_reason(self.base):
                raise ArchitectureError(f"layers[{index}].{reason}")
        if reason := self.embedding.invalid_reason(self.base):
            raise ArchitectureError(f"embedding.{reason}")

    @property
    def ffns(self) -> tuple[FFN, ...]:
        """The FFN of every layer."""
        return tuple(layer.ffn for layer in self.layers)

    @property
    def parts(self) -> tuple[Layer | PredictionHead | Embedding, ...]:
        """The layers, the head and the word embedding."""
        return (*self.layers, self.head, self.embedding)

    @property
    def has_experts(self) -> bool:
        """Whether any FFN, any attention or the head has several experts."""
        routed = (layer.attention.experts > 1 or layer.ffn.experts != DENSE for layer in self.layers)
        return self.head.experts > 1 or any(routed)

    @cached_property
    def _hash(self) -> int:
        return hash((self.base, self.layers, self.head, self.embedding))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Leave out the cached hash, which is different in another process.
        return type(self), (self.base, self.layers, self.head, self.embedding)

    @classmethod
    def of_ffns(
        cls, base: Base, ffns: Iterable[FFN], attention_experts: int = 1, head_experts: int = 1
    ) -> "Architecture":
        """The architecture with these FFNs, all heads, and as many experts in every attention and in the head."""
        attention = Attention(base.heads, attention_experts)
        return cls(base, tuple(Layer(attention, ffn) for ffn in ffns), PredictionHead(head_experts))

    @classmethod
    def uniform(
        cls,
        base: Base,
        graph: FFNGraph = GELU,
        stack: int = 1,
        expansion: Fraction | int = 1,
        experts: Experts = DENSE,
        attention_experts: int = 1,
        head_experts: int = 1,
    ) -> "Architecture":
        """An architecture whose layers are all the same; by default the base model itself."""
        ffn = FFN(graph, stack, Fraction(expansion), experts)
        return cls.of_ffns(base, (ffn,) * base.depth, attention_experts, head_experts)

    def with_ffns(self, ffns: Iterable[FFN]) -> "Architecture":
        """This architecture with other FFNs."""
        layers = zip(self.layers, ffns, strict=True)
        return replace(self, layers=tuple(Layer(layer.attention, ffn) for layer, ffn in layers))

    def with_heads(self, heads: Iterable[int]) -> "Architecture":
        """This architecture with other numbers of heads."""
        pairs = zip(self.layers, heads, strict=True)
        layers = (Layer(Attention(number, layer.attention.experts), layer.ffn) for layer, number in pairs)
        return replace(self, layers=tuple(layers))

    def transferred(self, base: Base) -> "Architecture":
        """The same layers, head and embedding on another base. If that base is n times as deep, each layer is repeated
        n times in a row, as EfficientBERT++ does with EfficientBERT's (n = 2). An attention with all heads gets all
        heads of the other base.

        Raises:
            ArchitectureError: the base's depth is not a multiple of this one's, or a layer or the embedding is
                invalid on it.
        """
        repeats, remainder = divmod(base.depth, self.base.depth)
        if remainder:
            raise ArchitectureError(
                f"{self.base.depth} layers can only be transferred to a multiple of that, not to {base.depth} layers"
            )
        layers = []
        for layer in self.layers:
            heads = base.heads if layer.attention.heads == self.base.heads else layer.attention.heads
            layers += [Layer(Attention(heads, layer.attention.experts), layer.ffn)] * repeats
        return Architecture(base.with_gates_of(self.base), tuple(layers), self.head, self.embedding)

    def to_json(self) -> dict[str, Any]:
        """JSON-serializable values; the inverse of `from_json`."""
        layers = [layer.to_json() for layer in self.layers]
        value = {"version": VERSION, "base": self.base.to_json(), "layers": layers, "head": self.head.to_json()}
        return value if self.embedding == FULL else value | {"embedding": self.embedding.to_json()}

    @classmethod
    def from_json(cls, value: object) -> "Architecture":
        """The architecture from parsed JSON. Raises ArchitectureError."""
        document = as_object("the architecture", value, ("version", "base", "layers"), ("head", "embedding", SEARCHED))
        version = document["version"]
        if isinstance(version, bool) or version not in (1, VERSION):
            raise ArchitectureError(f"version: {shortened(version)} is unknown; supported are 1 and {VERSION}")
        of_base, experts = document["base"], {"attention_experts": 1, "head_experts": 1}
        if version == 1 and isinstance(of_base, dict):
            experts |= {name: of_base[name] for name in experts if name in of_base}
            of_base = {name: entry for name, entry in of_base.items() if name not in experts}
            for name, count in experts.items():
                check_integer(f"base.{name}", count, MOST_EXPERTS)
        base = Base(**as_object("base", of_base, REQUIRED, OPTIONAL))
        layers = document["layers"]
        if not isinstance(layers, list):
            raise ArchitectureError(f"layers: must be a list, not {shortened(layers)}")
        if len(layers) != base.depth:
            raise ArchitectureError(f"layers: {len(layers)} given, but base.depth is {base.depth}")
        places = [(f"layers[{index}]", layer) for index, layer in enumerate(layers)]
        if version == 1:
            return cls.of_ffns(base, [FFN.from_json(place, layer) for place, layer in places], **experts)
        head = PredictionHead.from_json(document.get("head", {}))
        embedding = Embedding.from_json(document.get("embedding", {}))
        return cls(base, tuple(Layer.from_json(place, layer, base) for place, layer in places), head, embedding)

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

    def save(self, path: str | os.PathLike[str], searched: Mapping[str, Any] | None = None) -> None:
        """Write indented JSON atomically: other processes never see a partial file.

        Args:
            searched: with what it was searched, for people; it is no part of the architecture.
        """
        value = self.to_json() | ({SEARCHED: dict(searched)} if searched else {})
        write_text(Path(path), json.dumps(value, indent=2) + "\n")
