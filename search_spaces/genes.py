"""The genes: what a search can choose of an architecture's parts: its layers, its head and its word embedding.

A new gene needs a row of `GENES`, a value in `search_spaces.layer`, a key in the configuration's table [space]
(`nas.config.space`), and what it does to weights and costs. Spaces, neighbours, the encoding of samplers and the
parameters of trials iterate over the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import log, log2, sqrt
from operator import attrgetter
from typing import Any

import numpy as np

from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.graph import GELU, FFNGraph
from search_spaces.layer import DENSE, FFN, Embedding, Experts, Layer, PredictionHead
from search_spaces.operations import BINARY, UNARY
from search_spaces.routing import ROUTINGS

# The weights of features: of twice as many channels in a layer, of one more block, of an operation counted over all
# layers, and of an operation in a given layer.
DOUBLING, BLOCK, OPERATION, PLACED = sqrt(0.3), 0.5, 1.0, 0.5
# The weight of each number that describes the experts of a layer, of twice as many experts in the head, of twice as
# many attention heads in a layer, and of twice the rank of the word embedding.
EXPERTS, HEAD_EXPERTS, ATTENTION_HEADS, RANK = 0.4, 1.0, 0.5, 1.0
# The value for a segment of a graph without an operation, and for experts that are not among a space's choices.
NO_OPERATION, OTHER_EXPERTS = "none", "other"

Part = Layer | PredictionHead | Embedding
# By the name of a parameter that people see: its values, a range of whole numbers or single ones.
Domains = dict[str, range | tuple[int | str, ...]]


@dataclass(frozen=True)
class Gene:
    """One thing that a search can choose of a layer, of the head or of the word embedding.

    Attributes:
        key: the key of its choices in a configuration's [space]; empty for graphs, which a grammar draws.
        path: where its value is in the part.
        default: the only choice in a space on a base that is given no choices of it.
        features: an encoding for samplers that learn from scores, from all layers (or the only part), the base and
            `widths`, those that a layer of the space can have.
        distance: how different two parts are in this gene; the sum over genes is small for neighbours.
        domains: the parameters of trials in which people see it, from the base and the choices of all genes; none if it
            does not vary.
        values: the values of these parameters.
        words: the value in words; empty if it is the default, or if the description of a layer already shows it.
        of: the kind of part that it is a gene of.
    """

    key: str
    path: str
    default: Callable[[Base], Any]
    features: Callable[[Sequence[Any], Base, tuple[float, ...]], np.ndarray]
    distance: Callable[[Base, Any, Any], float]
    domains: Callable[[Base, Mapping[str, Sequence[Any]]], Domains]
    values: Callable[[Base, Any], dict[str, int | str]]
    words: Callable[[Base, Any], str] = lambda base, part: ""
    of: type[Part] = Layer

    @property
    def of_ffn(self) -> bool:
        """Whether it is a gene of a layer's FFN."""
        return self.path.startswith("ffn.")

    def parts(self, architecture: Architecture) -> Sequence[Part]:
        """The parts of an architecture that have it."""
        return [part for part in architecture.parts if isinstance(part, self.of)]

    def read(self, part: Part) -> Any:
        """The value of a part."""
        return attrgetter(self.path)(part)

    def replace(self, part: Any, value: Any) -> Any:
        """The part with another value."""
        return _replaced(part, self.path.split("."), value)


def _replaced(part: Any, path: Sequence[str], value: Any) -> Any:
    name, *rest = path
    return replace(part, **{name: _replaced(getattr(part, name), rest, value) if rest else value})


def log_channels(ffn: FFN, base: Base) -> float:
    """The base-2 logarithm of a layer's inner channels, summed over its blocks; no FFN counts as one channel."""
    return log2(max(1, ffn.stack * ffn.inner(base)))


def _width_features(layers: Sequence[Layer], base: Base, widths: tuple[float, ...]) -> np.ndarray:
    """How far the logarithm of a layer's channels is along the way from each of the `widths` to the next.

    A linear model of these columns can be any function of a layer's width; its prior is a Brownian motion over the
    logarithm of the width.
    """
    below, gaps = np.array(widths[:-1]), np.diff(widths)
    width = np.array([[log_channels(layer.ffn, base)] for layer in layers])
    progress = np.clip((width - below) / gaps, 0, 1) * np.sqrt(gaps)
    return DOUBLING * progress.ravel()


def _width_distance(base: Base, one: Layer, other: Layer) -> float:
    """|log ratio| of the channels of all blocks."""
    channels = [max(1, layer.ffn.stack * layer.ffn.inner(base)) for layer in (one, other)]
    return abs(log(channels[0] / channels[1]))


def counted_operations() -> tuple[str, ...]:
    """The operations that features count, including those that were added at run time."""
    return (*UNARY, *BINARY, "gate")


def _graph_features(layers: Sequence[Layer], base: Base, widths: tuple[float, ...]) -> np.ndarray:
    """How often each operation occurs in each segment of the graphs (before `expand`, between the linear maps, after
    `project`), over all layers and in each layer.
    """
    operations = counted_operations()
    counts = np.stack([_counts(layer.ffn.graph, operations) * bool(layer.ffn.stack) for layer in layers])
    return np.concatenate((OPERATION * counts.sum(axis=0), PLACED * counts.ravel()))


@lru_cache(maxsize=4096)
def _counts(graph: FFNGraph, operations: tuple[str, ...]) -> np.ndarray:
    """How often each operation occurs in each segment of a graph: (segments * operations,)."""

    def segment(op: str, inputs: tuple[int, ...]) -> int:
        return {"expand": 1, "gate": 1, "project": 2}.get(op, max(inputs, default=0))

    counts = np.zeros((3, len(operations)))
    for node, row in zip(graph.nodes, graph.fold(segment), strict=True):
        if node.op in operations:
            counts[row, operations.index(node.op)] += 1
    return counts.ravel()


def _operations_of(graph: FFNGraph | None) -> dict[str, int | str]:
    """The operation in each segment of a graph: before `expand`, between the linear maps, and after `project`."""
    names = ("operation before expand", "operation between", "operation after project")
    if graph is None:
        return dict.fromkeys(names, NO_OPERATION)
    inputs = (graph.nodes[graph.find(linear)].inputs[0] for linear in ("expand", "project"))
    return {name: _operation_at(graph, end) for name, end in zip(names, (*inputs, len(graph.nodes) - 1), strict=True)}


def _operation_at(graph: FFNGraph, end: int) -> str:
    """The binary operation that computes the value of a node, possibly followed by activations; if there is none, the
    last activation.
    """
    last = graph.nodes[end].op
    while graph.nodes[end].op in UNARY:
        end = graph.nodes[end].inputs[0]
    if graph.nodes[end].op in BINARY:
        return graph.nodes[end].op
    return last if last in UNARY else NO_OPERATION


def _experts_features(layers: Sequence[Layer], base: Base, widths: tuple[float, ...]) -> np.ndarray:
    """The settings of experts, all zero for a dense layer."""
    return EXPERTS * np.array([_settings(layer.ffn.experts) for layer in layers]).ravel()


def _settings(experts: Experts) -> tuple[float, ...]:
    one_hot = (float(experts.count > 1 and experts.routing == routing) for routing in ROUTINGS)
    inverse_capacity = 0.0 if experts.capacity is None else float(1 / experts.capacity)
    return log2(experts.count), float(experts.shared), log2(experts.top_k), inverse_capacity, *one_hot


def _experts_distance(base: Base, one: Layer, other: Layer) -> float:
    """|log ratio| of the counts, + 1 if any setting differs."""
    mine, theirs = one.ffn.experts, other.ffn.experts
    return abs(log(mine.count / theirs.count)) + (mine != theirs)


def _experts_domain(base: Base, choices: Mapping[str, Sequence[Any]]) -> Domains:
    kinds = tuple(dict.fromkeys(map(str, (DENSE, *choices["experts"]))))
    return {"experts": (*kinds, OTHER_EXPERTS)} if len(kinds) > 1 else {}


def _if_several(name: str, domain: range | tuple[int, ...]) -> Domains:
    return {name: domain} if len(domain) > 1 else {}


def _attention_heads(layer: Layer) -> int:
    return layer.attention.heads


def _rank(base: Base, embedding: Embedding) -> int:
    return embedding.rank or base.width


def _number_of_experts(key: str, path: str, label: str, weight: float) -> Gene:
    """A gene that is the number of experts in a layer's attention or in the head, 1 by default."""
    count = attrgetter(path)
    return Gene(
        key,
        path,
        lambda base: 1,
        features=lambda parts, base, widths: weight * np.array([log2(count(part)) for part in parts]),
        distance=lambda base, one, other: abs(log(count(one) / count(other))),
        domains=lambda base, choices: _if_several(f"experts in {label}", tuple(sorted({*choices[key]}))),
        values=lambda base, part: {f"experts in {label}": count(part)},
        words=lambda base, part: f"{count(part)} experts in {label}" if count(part) > 1 else "",
        of=PredictionHead if label == "head" else Layer,
    )


# The order is that of the columns of an encoding.
GENES: dict[str, Gene] = {
    "expansion": Gene(
        "expansions",
        "ffn.expansion",
        lambda base: FFN().expansion,
        features=_width_features,
        distance=_width_distance,
        domains=lambda base, choices: {"inner width": range(min(choices["stack"]), base.inner + 1)},
        values=lambda base, layer: {"inner width": layer.ffn.inner(base)},
    ),
    "stack": Gene(
        "stacks",
        "ffn.stack",
        lambda base: 1,
        features=lambda layers, base, widths: BLOCK * np.array([layer.ffn.stack for layer in layers]),
        distance=lambda base, one, other: abs(one.ffn.stack - other.ffn.stack),
        domains=lambda base, choices: _if_several("stack", range(min(choices["stack"]), max(choices["stack"]) + 1)),
        values=lambda base, layer: {"stack": layer.ffn.stack},
    ),
    "graph": Gene(
        "",
        "ffn.graph",
        lambda base: GELU,
        features=_graph_features,
        distance=lambda base, one, other: 0.0,
        domains=lambda base, choices: dict.fromkeys(_operations_of(GELU), (NO_OPERATION, *UNARY, *BINARY)),
        values=lambda base, layer: _operations_of(layer.ffn.graph if layer.ffn.stack else None),
    ),
    "experts": Gene(
        "experts",
        "ffn.experts",
        lambda base: DENSE,
        features=_experts_features,
        distance=_experts_distance,
        domains=_experts_domain,
        values=lambda base, layer: {"experts": str(layer.ffn.experts)},
    ),
    "heads": Gene(
        "heads",
        "attention.heads",
        lambda base: base.heads,
        features=lambda layers, base, widths: (
            ATTENTION_HEADS * np.array([log2(1 + _attention_heads(layer)) for layer in layers])
        ),
        distance=lambda base, one, other: abs(log((1 + _attention_heads(one)) / (1 + _attention_heads(other)))),
        domains=lambda base, choices: _if_several("heads", range(min(choices["heads"]), base.heads + 1)),
        values=lambda base, layer: {"heads": layer.attention.heads},
    ),
    "attention_experts": _number_of_experts("attention_experts", "attention.experts", "attention", EXPERTS),
    "head_experts": _number_of_experts("head_experts", "experts", "head", HEAD_EXPERTS),
    "rank": Gene(
        "ranks",
        "rank",
        lambda base: None,
        features=lambda parts, base, widths: RANK * np.array([log2(_rank(base, part)) for part in parts]),
        distance=lambda base, one, other: abs(log(_rank(base, one) / _rank(base, other))),
        domains=lambda base, choices: _if_several(
            "embedding rank", tuple(sorted({rank or base.width for rank in choices["rank"]}))
        ),
        values=lambda base, part: {"embedding rank": _rank(base, part)},
        words=lambda base, part: f"embedding of rank {part.rank}" if part.rank else "",
        of=Embedding,
    ),
}
# All but the graph: what the sizes of parts consist of.
SIZE_GENES = {name: gene for name, gene in GENES.items() if gene.key}


def genes_of(part: Part) -> dict[str, Gene]:
    """The genes of a part."""
    return {name: gene for name, gene in GENES.items() if isinstance(part, gene.of)}


def of_distinct_widths(expansions: Sequence[Fraction], base: Base) -> tuple[Fraction, ...]:
    """The expansions without those that are rounded to the same number of channels as one before them."""
    widths: dict[int, Fraction] = {}
    for expansion in expansions:
        widths.setdefault(FFN(expansion=expansion).inner(base), expansion)
    return tuple(widths.values())


def distance(base: Base, one: Part, other: Part) -> float:
    """The difference in size between two parts of the same kind: the sum over their genes."""
    return sum(gene.distance(base, one, other) for gene in genes_of(one).values())


def blocks_and_experts(part: Part) -> tuple[int, int]:
    """What orders sizes of equally many parameters."""
    if isinstance(part, Layer):
        return part.ffn.stack, part.ffn.experts.count
    return 0, part.experts if isinstance(part, PredictionHead) else 0


def outside_ffns(architecture: Architecture) -> str:
    """What the genes of attention, head and embedding say in words, such as "4 experts in attention, embedding of rank
    64"; empty if all have their defaults.
    """
    parts_in_words = []
    for gene in GENES.values():
        parts = gene.parts(architecture)
        places: dict[str, list[str]] = {}
        for number, part in enumerate(parts, start=1):
            if words := gene.words(architecture.base, part):
                places.setdefault(words, []).append(str(number))
        for words, numbers in places.items():
            layers = "" if len(numbers) == len(parts) else f" of layers {', '.join(numbers)}"
            parts_in_words.append(words + layers)
    return ", ".join(parts_in_words)
