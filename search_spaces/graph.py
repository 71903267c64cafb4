"""The feed-forward network of a layer as an immutable directed acyclic graph of operations.

The text form is a formula such as `tanh(project(gelu(expand(x))))`. Equal subterms of a formula are one node of the
graph, so intermediate results are reused.

Every value has a static kind: "outer" (as wide as the model, like the input `x`), "inner" (the output width of `expand`
and `gate`) or "mixed" (a binary operation on both). `expand` and `gate` map outer to inner values, `project` maps inner
or mixed values to outer ones; `expand` and `project` occur exactly once, `gate` at most once. So a path to the output
that contains `expand` or `gate` contains exactly one of the two, followed by `project`. With a gate, GeGLU is
`project(mul(gelu(expand(x)),gate(x)))`, and SwiGLU the same with `swish` (Shazeer, 2020). EfficientBERT's restrictions
on graphs (no activation of an activation, and so on) are part of the search space and are not checked here.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

import networkx as nx

from foundation.errors import did_you_mean, shortened
from search_spaces.operations import OPERATIONS, arity
from search_spaces.terms import MAX_TERMS, GraphError, read_terms

MISMATCH = ("narrow", "wide")
_BASE = re.compile(r"project\((?:(\w+)\(expand\(x\)\)|mul\((\w+)\(expand\(x\)\),gate\(x\)\))\)")

T = TypeVar("T")


class Node(NamedTuple):
    """An operation and the numbers of the nodes that are its arguments, in their order."""

    op: str
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, init=False, eq=False, repr=False)
class FFNGraph:
    """An immutable, hashable graph with one input `x` and one output of the model's width.

    `FFNGraph(digraph)` takes any `networkx.DiGraph` or `MultiDiGraph`: its nodes may have any names and need the
    attribute `op`; an edge has the attribute `position`, the index or indices of its source among the arguments of its
    target (by default 0).

    Graphs with the same formula are equal, however they were constructed: equal subterms are one node, and nodes are
    numbered in post-order from the output, so node 0 is the input, every node comes after its arguments, and the last
    node is the output.

    Attributes:
        nodes: all nodes in this order.

    Raises GraphError if the digraph is not a valid FFN graph; the message names the digraph's nodes.
    """

    nodes: tuple[Node, ...]

    def __new__(cls, digraph: "nx.DiGraph[Any]") -> "FFNGraph":
        return _parsed(_formula_of(digraph))

    @classmethod
    def parse(cls, text: str) -> "FFNGraph":
        """The graph of a formula such as `tanh(project(gelu(expand(x))))`. Raises GraphError."""
        if not isinstance(text, str):
            raise GraphError(f"must be a formula, not {shortened(text)}")
        return _parsed(text)

    def __str__(self) -> str:
        return self.texts[-1]

    def __repr__(self) -> str:
        return f"FFNGraph.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, FFNGraph) and self.nodes == other.nodes)

    @cached_property
    def _hash(self) -> int:
        return hash(self.nodes)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the hash, which another process computes differently.
        return FFNGraph.parse, (str(self),)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The formula of every node."""
        return tuple(self.fold(_spelled))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kind of every node's value: "outer", "inner" or "mixed"."""

        def kind(op: str, inputs: tuple[str, ...]) -> str:
            fixed = {"x": "outer", "expand": "inner", "gate": "inner", "project": "outer"}.get(op)
            return fixed or (inputs[0] if len(set(inputs)) == 1 else "mixed")

        return tuple(self.fold(kind))

    @cached_property
    def gated(self) -> bool:
        """Whether the graph has a `gate`."""
        return any(node.op == "gate" for node in self.nodes)

    def widths(self, outer: int, inner: int, mismatch: str = "narrow") -> tuple[int, ...]:
        """The number of channels of every node's value, for a model of width `outer` and an inner width of `inner`.

        A binary operation on values of different widths combines the leading channels that both have. The remaining
        channels of the wider value are dropped ("narrow": EfficientBERT) or appended unchanged ("wide": its transfer to
        TinyBERT).
        """
        choose = min if mismatch == "narrow" else max
        fixed = {"x": outer, "expand": inner, "gate": inner, "project": outer}
        return tuple(self.fold(lambda op, inputs: fixed[op] if op in fixed else choose(inputs)))

    @property
    def digraph(self) -> "nx.DiGraph[int]":
        """A new networkx graph: its nodes are numbers with the attribute `op`; the edges have `position`, a tuple of
        argument indices: `(0, 1)` if both arguments are the same node.
        """
        digraph: nx.DiGraph[int] = nx.DiGraph()
        for number, node in enumerate(self.nodes):
            digraph.add_node(number, op=node.op)
            for source in dict.fromkeys(node.inputs):
                positions = tuple([place for place, argument in enumerate(node.inputs) if argument == source])
                digraph.add_edge(source, number, position=positions)
        return digraph

    @property
    def activation(self) -> str:
        """The activation of a graph of the form of `base_graph`; empty if it has another form."""
        match = _BASE.fullmatch(str(self))
        return (match[1] or match[2]) if match else ""

    def find(self, op: str) -> int:
        """The number of the first node with this operation; `expand` and `project` occur exactly once."""
        return next(number for number, node in enumerate(self.nodes) if node.op == op)

    def fold(self, combine: Callable[[str, tuple[T, ...]], T]) -> list[T]:
        """Evaluate `combine(op, results of the arguments)` for every node in order; returns a result for each node."""
        results: list[T] = []
        for op, inputs in self.nodes:
            results.append(combine(op, tuple([results[number] for number in inputs])))
        return results


def _spelled(op: str, arguments: tuple[str, ...]) -> str:
    return f"{op}({','.join(arguments)})" if arguments else op


def _check_operation(op: object, inputs: int) -> None:
    if op == "x":
        if inputs:
            raise GraphError("'x' is the input and takes no arguments")
        return
    if not isinstance(op, str) or op not in OPERATIONS:
        suggestion = did_you_mean(op, OPERATIONS) if isinstance(op, str) else ""
        raise GraphError(f"unknown operation {shortened(op)}{suggestion or '; known are x, ' + ', '.join(OPERATIONS)}")
    if inputs != arity(op):
        raise GraphError(f"{op!r} takes {arity(op)} input{'s' * (arity(op) > 1)}, found {inputs}")


def _formula_of(digraph: "nx.DiGraph[Any]") -> str:
    """Check the structure of a digraph and return its formula. Raises GraphError, which names the digraph's nodes."""
    if not isinstance(digraph, nx.Graph) or not digraph.is_directed():
        raise GraphError(f"must be a directed graph of networkx, not {shortened(digraph)}")
    if not digraph:
        raise GraphError("the graph is empty")
    if len(digraph) > MAX_TERMS:
        raise GraphError(f"{len(digraph)} nodes; at most {MAX_TERMS} are allowed")
    arguments = {name: _arguments_of(digraph, name) for name in digraph}
    for name, sources in arguments.items():
        try:
            _check_operation(digraph.nodes[name].get("op"), len(sources))
        except GraphError as error:
            raise GraphError(f"node {shortened(name)}: {error}") from None
    if not nx.is_directed_acyclic_graph(digraph):
        cycle = [edge[0] for edge in nx.find_cycle(digraph)]
        names = [shortened(name, 20) for name in [*cycle, cycle[0]][:8]]
        raise GraphError(f"a cycle: {' -> '.join(names)}")
    outputs = [name for name, uses in digraph.out_degree() if not uses]
    if len(outputs) > 1:
        names = [f"{shortened(name, 20)} ({digraph.nodes[name]['op']})" for name in outputs[:3]]
        raise GraphError(f"{len(outputs)} outputs, nothing uses {' and '.join(names)}; a graph has one output")
    # Every node leads to the only output, so the last node of any topological order is the output.
    terms: dict[Hashable, int] = {}
    formulas: dict[Hashable, str] = {}
    for name in nx.topological_sort(digraph):
        terms[name] = 1 + sum(terms[source] for source in arguments[name])
        if terms[name] > MAX_TERMS:
            raise GraphError(f"node {shortened(name)}: written out, its formula has more than {MAX_TERMS} terms")
        formulas[name] = _spelled(digraph.nodes[name]["op"], tuple(formulas[source] for source in arguments[name]))
    return formulas[outputs[0]]


def _arguments_of(digraph: "nx.DiGraph[Any]", name: Hashable) -> tuple[Hashable, ...]:
    """The sources of a node's edges, in the order of their positions."""
    pairs: list[tuple[Any, Hashable]] = []
    for source, _, position in digraph.in_edges(name, data="position", default=0):
        places = position if isinstance(position, tuple | list) else (position,)
        pairs += [(place, source) for place in places]
    places = [place for place, _ in pairs]
    for place in places:
        if places.count(place) > 1:
            raise GraphError(f"node {shortened(name)}: two inputs at position {shortened(place)}")
    if not all(isinstance(place, int) and 0 <= place < len(places) for place in places):
        raise GraphError(
            f"node {shortened(name)}: the positions of its inputs must be 0, 1, ..., not {shortened(places)}"
        )
    return tuple(source for _, source in sorted(pairs, key=lambda pair: pair[0]))


@lru_cache(maxsize=16_384)
def _parsed(text: str) -> FFNGraph:
    """The graph of a formula. A search meets the same formulas again and again."""
    numbers: dict[Node, int] = {}

    def number(op: str, inputs: tuple[int, ...]) -> int:
        _check_operation(op, len(inputs))
        return numbers.setdefault(Node(op, inputs), len(numbers))

    # Terms are read in post-order.
    read_terms(text, number)
    nodes = tuple(numbers)
    graph = object.__new__(FFNGraph)
    object.__setattr__(graph, "nodes", nodes)
    _check_linear(nodes)
    _check_kinds(graph)
    return graph


def _check_linear(nodes: Sequence[Node]) -> None:
    for op, minimum in (("expand", 1), ("project", 1), ("gate", 0)):
        count = sum(node.op == op for node in nodes)
        if not minimum <= count <= 1:
            counted = f"{count} different ones" if count else "none"
            raise GraphError(f"a graph has {'exactly' if minimum else 'at most'} one {op!r}, found {counted}")


def _check_kinds(graph: FFNGraph) -> None:
    for node, text in zip(graph.nodes, graph.texts, strict=True):
        if node.op in ("expand", "gate") and graph.kinds[node.inputs[0]] != "outer":
            raise GraphError(f"{shortened(text)}: {node.op!r} needs a value of the model's width")
    # An `expand` or `gate` behind `project` needs no check: nothing leads from it back to the model's width.
    number = graph.find("project")
    if graph.kinds[graph.nodes[number].inputs[0]] == "outer":
        raise GraphError(f"{shortened(graph.texts[number])}: 'project' needs a value that comes from 'expand'")
    if graph.kinds[-1] != "outer":
        raise GraphError(f"the output has the {graph.kinds[-1]} width, not the model's; it must come after 'project'")


def base_graph(activation: str, gated: bool = False) -> FFNGraph:
    """project(activation(expand(x))), with a gate project(mul(activation(expand(x)),gate(x)))."""
    text = f"{activation}(expand(x))"
    return FFNGraph.parse(f"project(mul({text},gate(x)))" if gated else f"project({text})")


GELU = base_graph("gelu")
