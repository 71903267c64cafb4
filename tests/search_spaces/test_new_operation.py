"""An operation added from outside the package: one entry of a table is all that this package needs."""

import random
from fractions import Fraction

import numpy as np
import pytest

from search_spaces import OPERATIONS, UNARY, Architecture, Base, FFNGraph, GraphError, Operation, Space, cost
from search_spaces.equivalence import fingerprint, function_key
from search_spaces.formula import expression, latex, layers_latex
from search_spaces.neighbourhood import neighbours

BASE = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)
TEXT = "project(square(expand(x)))"


@pytest.fixture
def square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNARY, "square", Operation("a**2", np.square))


def graph() -> FFNGraph:
    return FFNGraph.parse(TEXT)


def test_it_is_drawn(square: None) -> None:
    space = Space(BASE, {"stack": (1, 2), "expansion": (Fraction(1), Fraction(1, 2))}, 1, 10**6, mutation_rate=0.5)
    drawn = [space.sample(random.Random(seed)) for seed in range(60)]
    with_it = [architecture for architecture in drawn if any("square(" in str(g.graph) for g in architecture.ffns)]
    assert len(with_it) > 5
    for architecture in with_it:
        assert Architecture.from_json(architecture.to_json()) == architecture
        assert architecture in space
        assert next(neighbours(space, architecture, random.Random(0))) in space
        assert len(function_key(architecture)) == 32
    start = Architecture.uniform(BASE, graph())
    assert start in space
    based_on_it = Space(BASE, {"stack": (1,), "expansion": (Fraction(1),)}, 1, 10**6, mutation_rate=0.0, graph=graph())
    assert based_on_it.sample(random.Random(0)) == start


def test_it_has_a_fingerprint(square: None) -> None:
    product = FFNGraph.parse("project(mul(expand(x),expand(x)))")
    rectified = FFNGraph.parse("project(mul(relu(expand(x)),expand(x)))")
    for inner in (12, 24, 48):
        assert fingerprint(graph(), BASE, inner) == fingerprint(product, BASE, inner)
        assert fingerprint(graph(), BASE, inner) != fingerprint(rectified, BASE, inner)


def test_it_has_a_cost(square: None) -> None:
    architecture = Architecture.uniform(BASE, graph())
    assert cost.params(architecture) == cost.params(Architecture.uniform(BASE))
    assert cost.macs(architecture) == cost.macs(Architecture.uniform(BASE))


def test_it_has_latex(square: None) -> None:
    assert latex(graph()) == r"W_{2}{\left(\operatorname{square}{\left(W_{1}{\left(x \right)} \right)} \right)}"
    assert layers_latex(Architecture.uniform(BASE, graph())) == [latex(graph())] * 3
    assert expression(graph()) == expression(FFNGraph.parse("project(mul(expand(x),expand(x)))"))


def test_without_it() -> None:
    assert "square" not in OPERATIONS
    with pytest.raises(GraphError, match="unknown operation 'square'"):
        FFNGraph.parse("project(square(tanh(expand(x))))")
