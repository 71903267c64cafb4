"""The feed-forward network of a layer as a value: a directed acyclic graph of operations.

The text form is the formula read as a tree, `tanh(project(gelu(expand(x))))`; subterms that are spelled twice
are one node, so a formula describes a graph whose intermediate results are reused.

Every value has a static kind: "outer" (the width of the model, like the input `x`), "inner" (what `expand`
and `gate` make) or "mixed" (a binary operation of the two). `expand` and `gate` lead from outer to inner,
`project` from inner or mixed to outer; `expand` and `project` occur exactly once, `gate` at most once. So a
path to the output that passes `expand` or `gate` passes one of them, and then `project`. With a gate, GeGLU is
`project(mul(gelu(expand(x)),gate(x)))`, and SwiGLU the same with `swish` (Shazeer, 2020). The space's rules of
style are not part of the type: see `breaks_rules`.
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any, TypeVar

import networkx as nx

from search_spaces.errors import UserError, did_you_mean, shown
from search_spaces.operations import OPERATIONS, arity

MAX_NODES = 64
MAX_TERMS = 256
MISMATCH = ("narrow", "wide")

T = TypeVar("T")
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\S)")


class GraphError(UserError, ValueError):
    """A text or structure is no feed-forward graph."""


@dataclass(frozen=True)
class Node:
    """An operation and the numbers of the nodes it is applied to."""

    op: str
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class FFNGraph:
    """An immutable, hashable graph with one input `x` and one output of the model's width.

    Nodes may be given in any order, as long as `inputs` are positions in that order; they are stored merged
    (equal subterms are one node) and numbered in post-order from the output, so equal formulas are equal
    values: node 0 is the input, every node comes after its inputs, the last node is the output.

    Raises GraphError if the nodes are not such a graph.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        given: dict[Hashable, tuple[str, tuple[Hashable, ...]]] = {
            place: (node.op, node.inputs) for place, node in enumerate(self.nodes)
        }
        object.__setattr__(self, "nodes", _normalise(given))
        _check_linear(self.nodes)
        _check_kinds(self)

    @cached_property
    def _hash(self) -> int:
        return hash(self.nodes)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the hash, which another process computes differently.
        return type(self), (self.nodes,)

    @classmethod
    def parse(cls, text: str) -> "FFNGraph":
        """The graph of a formula such as `tanh(project(gelu(expand(x))))`. Raises GraphError."""
        builder = TermBuilder()
        read_terms(text, builder.term)
        return cls(tuple(builder.numbers))

    @classmethod
    def from_json(cls, value: object, place: str = "graph") -> "FFNGraph":
        """The graph from a formula, or from a list of `{"id": ..., "op": ..., "inputs": [ids]}` with the
        input "x".

        Raises GraphError, whose message starts with `place`.
        """
        try:
            if isinstance(value, str):
                return cls.parse(value)
            if isinstance(value, list):
                return cls(_normalise(_given_from_list(value)))
            raise GraphError(f"must be a formula or a list of nodes, not {shown(value)}")
        except GraphError as error:
            raise GraphError(f"{place}: {error}") from None

    def to_json(self) -> str:
        """The formula."""
        return str(self)

    @classmethod
    def from_networkx(cls, graph: "nx.DiGraph[Any]") -> "FFNGraph":
        """The inverse of `to_networkx`; takes plain integers as `position` too, and a MultiDiGraph."""
        if not graph.is_directed():
            raise GraphError("must be a directed graph")
        arguments: dict[Hashable, dict[int, Hashable]] = {name: {} for name in graph.nodes}
        for source, target, data in graph.edges(data=True):
            position = data.get("position", 0)
            for place in position if isinstance(position, tuple | list) else (position,):
                if place in arguments[target]:
                    raise GraphError(f"node {shown(target)}: two inputs at position {shown(place)}")
                arguments[target][place] = source
        given: dict[Hashable, tuple[str, tuple[Hashable, ...]]] = {}
        for name, places in arguments.items():
            if set(places) != set(range(len(places))):
                raise GraphError(f"node {shown(name)}: the positions of its inputs are {shown(list(places))}")
            given[name] = (graph.nodes[name].get("op"), tuple(places[place] for place in range(len(places))))
        return cls(_normalise(given))

    def to_networkx(self) -> "nx.DiGraph[Any]":
        """Nodes carry `op`, edges `position`, a tuple of argument places: `(0, 1)` if both are the same."""
        graph: nx.DiGraph[Any] = nx.DiGraph()
        for number, node in enumerate(self.nodes):
            graph.add_node(number, op=node.op)
            for source in dict.fromkeys(node.inputs):
                position = tuple(place for place, given in enumerate(node.inputs) if given == source)
                graph.add_edge(source, number, position=position)
        return graph

    def __str__(self) -> str:
        return self.texts[-1]

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The formula of every node."""
        return tuple(self.fold(lambda op, inputs: f"{op}({','.join(inputs)})" if inputs else op))

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
        """The number of channels of every node's value, for a model `outer` wide whose `expand` and `gate` make
        `inner` channels.

        A binary operation on different widths keeps the leading channels of the narrower one ("narrow":
        EfficientBERT), or works on those and lets the rest of the wider one pass unchanged ("wide": its
        transfer to TinyBERT).
        """
        if mismatch not in MISMATCH:
            raise ValueError(f"mismatch: must be 'narrow' or 'wide', not {shown(mismatch)}")
        choose = min if mismatch == "narrow" else max
        fixed = {"x": outer, "expand": inner, "gate": inner, "project": outer}
        return tuple(self.fold(lambda op, inputs: fixed[op] if op in fixed else choose(inputs)))

    def find(self, op: str) -> int:
        """The number of the first node with this operation; `expand` and `project` occur exactly once."""
        return next(number for number, node in enumerate(self.nodes) if node.op == op)

    def fold(self, combine: Callable[[str, tuple[T, ...]], T]) -> list[T]:
        """One result per node, from the operation and the results of its inputs, inputs first."""
        results: list[T] = []
        for node in self.nodes:
            results.append(combine(node.op, tuple(results[number] for number in node.inputs)))
        return results


class TermBuilder:
    """Numbers terms as they are completed; equal terms get the same number."""

    def __init__(self) -> None:
        self.numbers: dict[Node, int] = {}

    def term(self, name: str, inputs: tuple[int, ...]) -> int:
        _check_operation(name, len(inputs))
        return self.numbers.setdefault(Node(name, inputs), len(self.numbers))


def read_terms(text: str, make: Callable[[str, tuple[T, ...]], T]) -> T:
    """Read `name` and `name(term, ...)`; calls `make(name, arguments)` as each term closes, returns the last
    result.

    Works without recursion and stops reading at MAX_TERMS, so hostile text is refused quickly. Raises
    GraphError.
    """
    if not isinstance(text, str):
        raise GraphError(f"must be a formula, not {shown(text)}")
    # A term has at most four tokens of its own: its name, two brackets and a comma.
    matches = islice(_TOKEN.finditer(text.rstrip()), 4 * MAX_TERMS + 1)
    tokens = [(match[1], match.start(1)) for match in matches]
    if len(tokens) > 4 * MAX_TERMS or sum(_is_name(token) for token, _ in tokens) > MAX_TERMS:
        raise GraphError(f"the formula has more than {MAX_TERMS} terms")
    tokens.append(("", len(text)))

    def unexpected(wanted: str) -> GraphError:
        token, place = tokens[position]
        found = f"found {shown(token)} at character {place + 1}" if token else "the formula ends"
        return GraphError(f"expected {wanted}, but {found}")

    position = 0
    opened: list[tuple[str, list[T]]] = []
    while True:
        name = tokens[position][0]
        if not _is_name(name):
            raise unexpected("an operation or 'x'")
        position += 1
        if tokens[position][0] == "(":
            opened.append((name, []))
            position += 1
            continue
        value = make(name, ())
        while opened:
            opened[-1][1].append(value)
            token = tokens[position][0]
            if token not in (",", ")"):
                raise unexpected("',' or ')'")
            position += 1
            if token == ",":
                break
            name, arguments = opened.pop()
            value = make(name, tuple(arguments))
        else:
            if tokens[position][0]:
                raise unexpected("the end")
            return value


def _is_name(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"


def _check_operation(op: object, inputs: int) -> None:
    if op == "x":
        if inputs:
            raise GraphError("'x' is the input and takes no arguments")
        return
    if not isinstance(op, str) or op not in OPERATIONS:
        hint = did_you_mean(op, OPERATIONS) if isinstance(op, str) else ""
        raise GraphError(f"unknown operation {shown(op)}{hint or '; known are x, ' + ', '.join(OPERATIONS)}")
    if inputs != arity(op):
        raise GraphError(f"{op!r} takes {arity(op)} input{'s' * (arity(op) > 1)}, found {inputs}")


def _given_from_list(items: Sequence[object]) -> dict[Hashable, tuple[str, tuple[Hashable, ...]]]:
    """Nodes by their names, from the JSON list."""
    if len(items) > MAX_TERMS:
        raise GraphError(f"{len(items)} nodes; at most {MAX_NODES} are allowed")
    given: dict[Hashable, tuple[str, tuple[Hashable, ...]]] = {"x": ("x", ())}
    for place, item in enumerate(items):
        if not isinstance(item, dict) or set(item) != {"id", "op", "inputs"}:
            raise GraphError(f"[{place}]: must have exactly the keys id, op and inputs")
        name, op, inputs = item["id"], item["op"], item["inputs"]
        if not isinstance(inputs, list):
            raise GraphError(f"[{place}].inputs: must be a list of ids, not {shown(inputs)}")
        for value in (name, *inputs):
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise GraphError(f"[{place}]: an id is a text or a whole number, not {shown(value)}")
        if name in given:
            taken = "is the input's" if name == "x" else "is already taken"
            raise GraphError(f"[{place}].id: {shown(name)} {taken}")
        if op == "x":
            raise GraphError(f"[{place}].op: the input 'x' is there already; refer to it by the id 'x'")
        given[name] = (op, tuple(inputs))
    return given


def _normalise(given: Mapping[Hashable, tuple[str, tuple[Hashable, ...]]]) -> tuple[Node, ...]:
    """Check arity, references, cycles, the one output and the size; merge equal nodes, number them in
    post-order.
    """
    if not given:
        raise GraphError("the graph is empty")
    if len(given) > MAX_TERMS:
        raise GraphError(f"{len(given)} nodes; at most {MAX_NODES} are allowed")
    for name, (op, inputs) in given.items():
        _check_operation(op, len(inputs))
        for source in inputs:
            if source not in given:
                raise GraphError(f"node {shown(name)} ({op}): there is no node {shown(source)}")
    try:
        TopologicalSorter({name: inputs for name, (_, inputs) in given.items()}).prepare()
    except CycleError as error:
        raise GraphError(f"a cycle: {' -> '.join(shown(name, 20) for name in error.args[1][:8])}") from None
    used = {source for _, inputs in given.values() for source in inputs}
    outputs = [name for name in given if name not in used]
    if len(outputs) > 1:
        names = " and ".join(f"{shown(name, 20)} ({given[name][0]})" for name in outputs[:3])
        raise GraphError(f"{len(outputs)} outputs, nothing uses {names}; a graph has one output")

    numbers: dict[Node, int] = {}
    number_of: dict[Hashable, int] = {}
    waiting = [outputs[0]]
    while waiting:
        op, inputs = given[waiting[-1]]
        missing = [source for source in inputs if source not in number_of]
        if missing:
            waiting.extend(reversed(missing))
            continue
        node = Node(op, tuple(number_of[source] for source in inputs))
        number_of[waiting.pop()] = numbers.setdefault(node, len(numbers))
    nodes = tuple(numbers)
    if len(nodes) > MAX_NODES:
        raise GraphError(f"{len(nodes)} nodes; at most {MAX_NODES} are allowed")
    terms: list[int] = []
    for node in nodes:
        terms.append(1 + sum(terms[number] for number in node.inputs))
    if terms[-1] > MAX_TERMS:
        raise GraphError(f"written out, the formula has {terms[-1]} terms; at most {MAX_TERMS} are allowed")
    return nodes


def _check_linear(nodes: Sequence[Node]) -> None:
    for op, least in (("expand", 1), ("project", 1), ("gate", 0)):
        count = sum(node.op == op for node in nodes)
        if not least <= count <= 1:
            found = f"{count} different ones" if count else "none"
            raise GraphError(f"a graph has {'exactly' if least else 'at most'} one {op!r}, found {found}")


def _check_kinds(graph: FFNGraph) -> None:
    for node, text in zip(graph.nodes, graph.texts, strict=True):
        if node.op in ("expand", "gate") and graph.kinds[node.inputs[0]] != "outer":
            raise GraphError(f"{shown(text)}: {node.op!r} needs a value of the model's width")
    # An `expand` or `gate` behind `project` needs no check: nothing leads from it back to the model's width.
    number = graph.find("project")
    if graph.kinds[graph.nodes[number].inputs[0]] == "outer":
        raise GraphError(f"{shown(graph.texts[number])}: 'project' needs a value that comes from 'expand'")
    if graph.kinds[-1] != "outer":
        raise GraphError(f"the output has the {graph.kinds[-1]} width, not the model's; it must come after 'project'")


GELU = FFNGraph.parse("project(gelu(expand(x)))")
