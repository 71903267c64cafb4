"""The graph type: round trips, identity, checks, static widths, hostile input."""

import copy
import dataclasses
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.graph import GELU, MAX_TERMS, FFNGraph, GraphError, Node
from tests.search_spaces.strategies import broken_rules, graphs


@given(graphs())
def test_round_trips(graph: FFNGraph) -> None:
    for same in (
        FFNGraph.parse(str(graph)),
        FFNGraph.parse(str(graph).replace(",", " ,\n").replace("(", "\t( ")),
        FFNGraph(graph.digraph),
        FFNGraph(nx.DiGraph(graph.digraph)),
        copy.deepcopy(graph),
        pickle.loads(pickle.dumps(graph)),
    ):
        assert same == graph
        assert hash(same) == hash(graph)
        assert str(same) == str(graph)
        assert same.nodes == graph.nodes


@given(graphs(), st.randoms(use_true_random=False))
def test_numbering_does_not_depend_on_the_order_given(graph: FFNGraph, rng: Any) -> None:
    labels = list(range(len(graph.nodes)))
    rng.shuffle(labels)
    renamed = nx.relabel_nodes(graph.digraph, dict(enumerate(labels)))
    assert FFNGraph(renamed).nodes == graph.nodes
    names = {number: ("node", frozenset({label})) for number, label in enumerate(labels)}
    assert FFNGraph(nx.relabel_nodes(graph.digraph, names)) == graph


@given(graphs())
def test_structure(graph: FFNGraph) -> None:
    assert graph.nodes[0] == Node("x")
    assert len(set(graph.nodes)) == len(graph.nodes)
    for number, node in enumerate(graph.nodes):
        assert all(source < number for source in node.inputs)
    digraph, output = graph.digraph, len(graph.nodes) - 1
    assert nx.is_directed_acyclic_graph(digraph)
    assert nx.ancestors(digraph, output) == set(range(output))
    assert nx.descendants(digraph, 0) == set(range(1, output + 1))
    # Post-order: predecessors are listed by their positions.
    assert list(nx.dfs_postorder_nodes(digraph.reverse(copy=False), output)) == list(range(output + 1))
    for number, node in enumerate(graph.nodes):
        assert digraph.nodes[number] == {"op": node.op}
        edges = digraph.in_edges(number, data="position")
        assert {place: source for source, _, places in edges for place in places} == dict(enumerate(node.inputs))


@given(graphs(), graphs())
def test_equal_exactly_if_the_formulas_are(one: FFNGraph, two: FFNGraph) -> None:
    assert (one == two) == (str(one) == str(two))


@given(graphs(), st.integers(1, 40), st.integers(1, 40))
def test_widths(graph: FFNGraph, outer: int, inner: int) -> None:
    expected = {"outer": {outer}, "inner": {inner}}
    for mismatch, mixed in (("narrow", min(outer, inner)), ("wide", max(outer, inner))):
        widths = graph.widths(outer, inner, mismatch)
        assert widths[-1] == outer
        for kind, width in zip(graph.kinds, widths, strict=True):
            assert width in expected.get(kind, {mixed})


def test_shared_subterms_are_one_node() -> None:
    graph = FFNGraph.parse("project(mul(gelu(expand(x)),expand(x)))")
    assert [node.op for node in graph.nodes] == ["x", "expand", "gelu", "mul", "project"]
    assert graph.nodes[3].inputs == (2, 1)
    squared = FFNGraph.parse("project(mul(relu(expand(x)),relu(expand(x))))")
    assert squared.nodes[3] == Node("mul", (2, 2))
    assert squared.digraph.edges[2, 3]["position"] == (0, 1)


def test_a_multigraph_with_integer_positions() -> None:
    graph = nx.MultiDiGraph()
    graph.add_nodes_from([("in", {"op": "x"}), ("e", {"op": "expand"}), ("m", {"op": "mul"}), ("p", {"op": "project"})])
    graph.add_edges_from([("in", "e"), ("m", "p")])
    graph.add_edges_from([("e", "m", {"position": 1}), ("e", "m", {"position": 0})])
    assert str(FFNGraph(graph)) == "project(mul(expand(x),expand(x)))"


def test_mixed_widths_are_typed() -> None:
    graph = FFNGraph.parse("project(relu(mul(expand(x),x)))")
    assert graph.kinds == ("outer", "inner", "mixed", "mixed", "outer")
    assert graph.widths(540, 270) == (540, 270, 270, 270, 540)
    assert graph.widths(540, 270, "wide") == (540, 270, 540, 540, 540)
    gated = FFNGraph.parse("project(mul(gelu(expand(x)),gate(x)))")
    assert gated.gated and not graph.gated
    assert gated.kinds == ("outer", "inner", "inner", "inner", "inner", "outer")
    assert gated.widths(540, 270, "wide") == (540, 270, 270, 270, 270, 540)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("project(gleu(expand(x)))", "unknown operation 'gleu'; did you mean 'gelu'?"),
        ("project(gelu(expand(y)))", "unknown operation 'y'; known are x, add"),
        ("project(add(expand(x)))", "'add' takes 2 inputs, found 1"),
        ("project(gelu(expand(x),x))", "'gelu' takes 1 input, found 2"),
        ("project(gelu)", "'gelu' takes 1 input, found 0"),
        ("gelu(x)", "exactly one 'expand', found none"),
        ("gelu(expand(x))", "exactly one 'project', found none"),
        ("project(add(expand(x),expand(tanh(x))))", "exactly one 'expand', found 2 different ones"),
        ("add(project(expand(x)),project(tanh(expand(x))))", "exactly one 'project', found 2 different ones"),
        ("project(mul(expand(x),add(gate(x),gate(tanh(x)))))", "at most one 'gate', found 2 different ones"),
        ("project(gelu(gate(x)))", "exactly one 'expand', found none"),
        ("project(gate(expand(x)))", "'gate(expand(x))': 'gate' needs a value of the model's width"),
        ("project(expand(gelu(gate(x))))", "'expand(gelu(gate(x)))': 'expand' needs a value of the model's width"),
        ("project(gate(mul(expand(x),x)))", "'gate' needs a value of the model's width"),
        ("gate(project(expand(x)))", "the output has the inner width"),
        ("expand(project(gate(x)))", "the output has the inner width"),
        ("mul(project(expand(x)),gate(x))", "the output has the mixed width"),
        ("add(project(gate(x)),expand(project(gate(x))))", "the output has the mixed width"),
        ("expand(project(x))", "'project' needs a value that comes from 'expand'"),
        ("add(project(expand(x)),expand(x))", "the output has the mixed width"),
        ("", "the formula ends"),
        ("project(gelu(expand(x))", "expected ',' or ')', but the formula ends"),
        ("project(gelu(expand(x))))", "expected the end, but found ')' at character 25"),
        ("project(gelu(expand(x))) x", "expected the end, but found 'x'"),
        ("project()", "expected an operation or 'x', but found ')' at character 9"),
        ("x(project(expand(x)))", "'x' is the input and takes no arguments"),
        ("2 + x", "found '2' at character 1"),
        ("__import__('os')", 'found "\'"'),
        ("\x00", "found '\\x00'"),
    ],
)
def test_faulty_formulas(text: str, message: str) -> None:
    with pytest.raises(GraphError) as error:
        FFNGraph.parse(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def formulas(terms: int) -> Iterator[str]:
    """Every formula of this many terms from x, the linear maps and add, valid or not."""
    if terms == 1:
        yield "x"
        return
    yield from (f"{op}({inner})" for inner in formulas(terms - 1) for op in ("expand", "gate", "project"))
    for left in range(1, terms - 1):
        yield from map("add({0[0]},{0[1]})".format, product(formulas(left), formulas(terms - 1 - left)))


def paths(text: str) -> set[tuple[str, ...]]:
    """The linear maps on every path from the input to the output of a formula."""
    found, opened = set(), []
    for name, mark in re.findall(r"(\w+)|([()])", text):
        if name == "x":
            found.add(tuple(op for op in reversed(opened) if op != "add"))
        elif name:
            opened.append(name)
        elif mark == ")":
            opened.pop()
    return found


def test_linear_maps_by_enumeration() -> None:
    """A formula is a graph exactly if every path passes expand or gate at most once, and then project."""
    accepted = Counter()
    for text in (text for terms in range(1, 9) for text in formulas(terms)):
        maps = {op: len(set(subterms(text, op))) for op in ("expand", "project", "gate")}
        counted = maps["expand"] == maps["project"] == 1 and maps["gate"] <= 1
        allowed = paths(text) <= {(), ("project",), ("expand", "project"), ("gate", "project")}
        try:
            graph = FFNGraph.parse(text)
        except GraphError:
            assert not (counted and allowed), text
        else:
            assert counted and allowed, text
            assert graph.gated == (maps["gate"] == 1)
            accepted[graph.gated] += 1
    assert min(accepted[False], accepted[True]) > 10


def subterms(text: str, op: str) -> Iterator[str]:
    """Every subterm with this operation."""
    for match in re.finditer(op, text):
        depth = 0
        for place in range(match.end(), len(text)):
            depth += (text[place] == "(") - (text[place] == ")")
            if not depth:
                yield text[match.start() : place + 1]
                break


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([("x", "e"), ("e", "p"), ("x", "p")], "two inputs at position 0"),
        ([("x", "e"), ("e", "p", {"position": 1})], "the positions of its inputs must be 0, 1, ..., not [1]"),
        ([("x", "e"), ("e", "p", {"position": "left"})], "the positions of its inputs must be 0, 1, ..., not ['left']"),
    ],
)
def test_faulty_networkx(edges: list[tuple[Any, ...]], message: str) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from([("x", {"op": "x"}), ("e", {"op": "expand"}), ("p", {"op": "project"})])
    graph.add_edges_from(edges)
    with pytest.raises(GraphError) as error:
        FFNGraph(graph)
    assert message in str(error.value)


def test_a_cyclic_digraph() -> None:
    for kind in (nx.DiGraph, nx.MultiDiGraph):
        digraph = kind()
        digraph.add_nodes_from([("in", {"op": "x"}), (("a", 1), {"op": "max"}), ("b", {"op": "tanh"})])
        digraph.add_edges_from([("in", ("a", 1), {"position": 0}), ("b", ("a", 1), {"position": 1}), (("a", 1), "b")])
        with pytest.raises(GraphError) as error:
            FFNGraph(digraph)
        assert str(error.value) in ("a cycle: ('a', 1) -> 'b' -> ('a', 1)", "a cycle: 'b' -> ('a', 1) -> 'b'")
    digraph.remove_edge("b", ("a", 1))
    digraph.add_edge("in", ("a", 1), position=1)
    digraph.add_node("c", op="x")
    with pytest.raises(GraphError, match=r"2 outputs, nothing uses 'b' \(tanh\) and 'c' \(x\); a graph has one output"):
        FFNGraph(digraph)


def test_hostile_digraphs() -> None:
    with pytest.raises(GraphError, match="10000 nodes; at most 256"):
        FFNGraph(nx.path_graph(10_000, nx.DiGraph))
    digraph = nx.relabel_nodes(GELU.digraph, {2: "n" * 10_000_000})
    digraph.nodes["n" * 10_000_000]["op"] = "gleu"
    with pytest.raises(GraphError, match=r"^node 'nnn.*: unknown operation 'gleu'; did you mean 'gelu'") as error:
        FFNGraph(digraph)
    assert len(str(error.value)) < 200
    for position in (True, -1, 0.5, None, [[0]], {}, ()):
        digraph = GELU.digraph.copy()
        digraph.edges[0, 1]["position"] = position
        with pytest.raises(GraphError, match=r"node 1: (the positions of its inputs must be|'expand' takes 1 input)"):
            FFNGraph(digraph)


def test_a_graph_does_not_follow_changes_of_a_digraph() -> None:
    digraph = GELU.digraph
    graph = FFNGraph(digraph)
    digraph.nodes[2]["op"] = "relu"
    digraph.remove_node(3)
    assert graph == GELU and nx.utils.graphs_equal(graph.digraph, GELU.digraph)
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.nodes = ()  # type: ignore[misc]


def test_a_pickled_graph_is_found_in_sets_of_another_process() -> None:
    graph = FFNGraph.parse("tanh(project(relu(mul(expand(x),x))))")
    assert hash(graph) == hash(graph.nodes)
    code = (
        "import pickle, sys\n"
        "from search_spaces import FFNGraph\n"
        "graph = pickle.loads(sys.stdin.buffer.read())\n"
        "assert {graph} == {FFNGraph.parse(str(graph))} and graph.digraph.nodes[1]['op'] == 'expand'"
    )
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], input=pickle.dumps(graph), env=environment, check=True)


def test_networkx_without_operation_or_direction() -> None:
    graph = nx.DiGraph([("x", "e")])
    with pytest.raises(GraphError, match="unknown operation None"):
        FFNGraph(graph)
    with pytest.raises(GraphError, match="directed"):
        FFNGraph(GELU.digraph.to_undirected())


@pytest.mark.parametrize(
    "text",
    [
        "tanh(" * 10_000 + "project(expand(x))" + ")" * 10_000,
        "(" * 100_000,
        "add(" * 9_999 + "x" + ",x)" * 9_999,
        "x," * 5_000_000,
        " " * 5_000_000,
        "project(expand(x" + " " * 5_000_000 + "))" + " " * 5_000_000 + "!",
        "tanh" * 2_000_000 + "(x)",
    ],
    ids=["deep", "brackets", "nodes", "commas", "spaces", "padding", "name"],
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(GraphError) as error:
        FFNGraph.parse(text)
    assert len(str(error.value)) < 200


def test_sharing_must_not_blow_up_the_formula() -> None:
    # Forty doublings would be a formula of 2**40 terms.
    digraph = nx.DiGraph()
    digraph.add_nodes_from([("x", {"op": "x"}), (0, {"op": "expand"}), ("p", {"op": "project"})])
    digraph.add_nodes_from(range(1, 41), op="add")
    digraph.add_edges_from([("x", 0), (40, "p")])
    nx.add_path(digraph, range(41), position=(0, 1))
    with pytest.raises(GraphError, match=f"node 7: .* more than {MAX_TERMS} terms"):
        FFNGraph(digraph)


def test_limits_are_inclusive() -> None:
    longest = "tanh(" * (MAX_TERMS - 3) + "project(expand(x))" + ")" * (MAX_TERMS - 3)
    assert len(FFNGraph.parse(longest).nodes) == MAX_TERMS
    with pytest.raises(GraphError, match=f"more than {MAX_TERMS} terms"):
        FFNGraph.parse(f"relu({longest})")


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("project(gelu(expand(x)))", []),
        ("project(relu(mul(expand(x),x)))", []),
        ("project(mul(gelu(expand(x)),gate(x)))", []),
        ("project(expand(x))", ["project(expand(x)): a linear map on a linear map"]),
        ("project(relu(tanh(expand(x))))", ["relu(tanh(expand(x))): an activation on an activation"]),
        ("project(add(expand(x),expand(x)))", ["add(expand(x),expand(x)): both inputs are equal"]),
    ],
)
def test_rules_belong_to_the_space(text: str, broken: list[str]) -> None:
    assert broken_rules(FFNGraph.parse(text)) == broken


def test_other_types_are_refused() -> None:
    with pytest.raises(GraphError, match="must be a formula, not Fraction"):
        FFNGraph.parse(Fraction(1))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="the graph is empty"):
        FFNGraph(nx.DiGraph())
    for value in ("project(expand(x))", None, ()):
        with pytest.raises(GraphError, match="must be a directed graph of networkx, not "):
            FFNGraph(value)


@pytest.mark.parametrize(
    ("formula", "activation"),
    [
        ("project(gelu(expand(x)))", "gelu"),
        ("project(mul(relu(expand(x)),gate(x)))", "relu"),
        ("tanh(project(gelu(expand(x))))", ""),
        ("project(expand(x))", ""),
    ],
)
def test_the_activation_of_a_base_graph(formula: str, activation: str) -> None:
    assert FFNGraph.parse(formula).activation == activation
