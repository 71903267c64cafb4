"""Formulas as mathematics."""

import sympy
from hypothesis import given, settings

from search_spaces import FFN, GELU, PUBLISHED, Architecture, Base, FFNGraph
from search_spaces.formula import expression, latex, layers_latex
from tests.search_spaces.strategies import graphs

X = sympy.Symbol("x", real=True)
W_1, W_2, W_3 = (sympy.Function(name, real=True) for name in ("W_1", "W_2", "W_3"))


def test_expression() -> None:
    graph = FFNGraph.parse("sigmoid(project(relu(mul(expand(x),x))))")
    assert expression(graph) == 1 / (1 + sympy.exp(-W_2(sympy.Max(0, X * W_1(X)))))


def test_gated_expressions() -> None:
    swiglu = expression(FFNGraph.parse("project(mul(swish(expand(x)),gate(x)))"))
    assert swiglu == W_2(W_1(X) / (1 + sympy.exp(-W_1(X))) * W_3(X))
    glu = expression(FFNGraph.parse("project(mul(mul(sigmoid(expand(x)),expand(x)),gate(x)))"))
    assert glu == swiglu
    assert latex(FFNGraph.parse("project(mul(expand(x),gate(x)))")).count("W_{3}") == 1


def test_meanings_prove_identities() -> None:
    once = expression(FFNGraph.parse("project(relu(expand(x)))"))
    assert expression(FFNGraph.parse("project(relu(relu(expand(x))))")) == once
    assert expression(FFNGraph.parse("project(max(relu(expand(x)),expand(x)))")) == once
    swish = expression(FFNGraph.parse("project(swish(expand(x)))"))
    assert expression(FFNGraph.parse("project(mul(sigmoid(expand(x)),expand(x)))")) == swish
    squared = expression(FFNGraph.parse("project(mul(relu(expand(x)),relu(expand(x))))"))
    assert squared == W_2(sympy.Max(0, W_1(X)) ** 2)


def test_latex() -> None:
    gelu = r"\operatorname{gelu}{\left(W_{1}{\left(x \right)} \right)}"
    assert latex(GELU) == rf"W_{{2}}{{\left({gelu} \right)}}"
    assert r"\operatorname{leaky\_relu}{\left(x \right)}" in latex(FFNGraph.parse("project(expand(leaky_relu(x)))"))


def test_no_ffn_is_said() -> None:
    architecture = Architecture.of_ffns(Base(2, 8, 2, 8), (FFN(stack=0), FFN()))
    assert layers_latex(architecture) == [r"\text{no FFN}", latex(GELU)]
    assert [ffn.formula for ffn in architecture.ffns] == ["no FFN", str(GELU)]


def test_latex_of_layers() -> None:
    formulas = layers_latex(PUBLISHED["efficientbert"])
    assert formulas == [latex(ffn.graph) for ffn in PUBLISHED["efficientbert"].ffns]
    assert len(set(formulas)) == 6


@settings(max_examples=20)
@given(graphs())
def test_every_graph_has_a_formula(graph: FFNGraph) -> None:
    assert expression(graph, named=True).free_symbols == {X}
    assert "x" in latex(graph)
