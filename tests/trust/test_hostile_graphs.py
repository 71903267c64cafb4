"""Arbitrary graphs of networkx: refused in one line, or read as they are."""

import random
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest

from search_spaces import FFNGraph
from search_spaces.operations import OPERATIONS
from tests.tiny import graphs
from tests.trust.mutations import WEIRD, case
from tests.trust_counts import Cases

KINDS = (nx.DiGraph, nx.DiGraph, nx.DiGraph, nx.MultiDiGraph, nx.Graph, nx.MultiGraph)
NAMES: list[Any] = [*range(6), "x", "", "\ud800", (1, 2), frozenset({1}), 10**30, 1.5, float("nan"), True, "a" * 9999]


def hostile(rng: random.Random, given: list[FFNGraph]) -> "nx.Graph[Any]":
    """A graph drawn at random, or a valid one after a few changes."""
    if rng.random() < 0.3:
        graph = rng.choice(KINDS)()
        for name in rng.sample(NAMES, rng.randint(0, len(NAMES))):
            graph.add_node(name, op=rng.choice([*OPERATIONS, "x", *WEIRD]))
    else:
        graph = rng.choice(KINDS)(rng.choice(given).digraph.copy())
    for _ in range(rng.randint(0, 4)):
        nodes = list(graph)
        if not nodes:
            break
        change = rng.choice(("edge", "node", "op", "attribute", "remove", "position", "cycle", "many", "again"))
        one, other = rng.choice(nodes), rng.choice(nodes)
        match change:
            case "edge":
                graph.add_edge(one, other, position=rng.choice([0, 1, (0, 1), *WEIRD]))
            case "again":
                graph.add_edge(one, other)
                graph.add_edge(one, other)
            case "node":
                graph.add_node(rng.choice(NAMES), op=rng.choice([*OPERATIONS, *WEIRD]))
            case "op":
                graph.nodes[one]["op"] = rng.choice([*OPERATIONS, *WEIRD])
            case "attribute":
                graph.nodes[one]["more"] = rng.choice(WEIRD)
            case "remove":
                graph.remove_node(one)
            case "position":
                for *_, attributes in graph.edges(data=True):
                    attributes["position"] = rng.choice([0, 1, (1, 0), *WEIRD])
            case "cycle":
                graph.add_edges_from([(one, other), (other, one), (one, one)])
            case "many":
                nx.add_path(graph, [one, *range(100, 100 + rng.choice((3, 70, 5000)))], position=0)
    return graph


@pytest.mark.trust
def test_hostile_graphs(cases: Callable[..., Cases]) -> None:
    """networkx graphs with any edges and attributes."""
    counts = cases(sample=100, full=50_000)
    rng, given = random.Random(0), graphs(50)
    for number in range(counts.wanted):
        digraph = hostile(rng, given)
        shown = f"{digraph}: {list(digraph.nodes(data=True))} {list(digraph.edges(data=True))}"
        with case(counts, f"case {number}: {shown}"):
            graph = FFNGraph(digraph)
            assert FFNGraph.parse(str(graph)) == graph == FFNGraph(graph.digraph)
    assert counts["refused"] and counts["read"]
