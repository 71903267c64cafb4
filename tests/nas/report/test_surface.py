"""The nonlinearity surfaces against formulas that are written out."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import sympy

from nas.report import surface
from search_spaces import DENSE, FFN, Architecture, Base, FFNGraph
from search_spaces.formula import expression
from search_spaces.graph import GELU

BASE = Base(depth=2, width=24, heads=4, inner=48)
X, Y = surface.grid()


def gelu(value: np.ndarray) -> np.ndarray:
    return value / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("project(gelu(expand(x)))", lambda: 2 * gelu(X + Y)),
        ("tanh(project(gelu(expand(x))))", lambda: np.tanh(2 * gelu(X + Y))),
        ("project(relu(expand(tanh(x))))", lambda: 2 * np.maximum(np.tanh(X) + np.tanh(Y), 0)),
        ("add(project(gelu(expand(x))),relu(x))", lambda: 2 * gelu(X + Y) + (np.maximum(X, 0) + np.maximum(Y, 0)) / 2),
        # The product of an inner value with each of the input's channels; `project` is the sum over them.
        ("project(mul(gelu(expand(x)),x))", lambda: gelu(X + Y) * (X + Y)),
        ("project(mul(swish(expand(x)),gate(x)))", lambda: 2 * (X + Y) ** 2 / (1 + np.exp(-(X + Y)))),
    ],
)
def test_of_graphs(formula: str, expected: Callable[[], np.ndarray]) -> None:
    assert surface.of_graph(FFNGraph.parse(formula)) == pytest.approx(expected(), abs=1e-12)


@pytest.mark.parametrize("formula", ["project(swish(expand(x)))", "elu(project(sigmoid(expand(x))))"])
def test_the_symbolic_formula_is_the_same_function(formula: str) -> None:
    """Where both inputs are equal, every sum is over two equal channels, so the linear maps double."""
    graph, x = FFNGraph.parse(formula), sympy.Symbol("x", real=True)
    symbolic = expression(graph).replace(sympy.core.function.AppliedUndef, lambda argument: 2 * argument)
    values = sympy.lambdify(x, symbolic)(np.diag(X))
    assert np.diag(surface.of_graph(graph)) == pytest.approx(values)


def test_of_architectures() -> None:
    whole = Architecture.of_ffns(BASE, (FFN(GELU, 2, Fraction(1, 2), DENSE), FFN(GELU, 0)))
    hidden = np.stack([X, Y])
    for _ in range(2):
        hidden = (hidden + 2 * gelu(hidden.sum(axis=0))) / 2
    assert surface.of_architecture(whole) == pytest.approx(hidden.mean(axis=0))
    without = Architecture.of_ffns(BASE, (FFN(GELU, 0),) * 2)
    assert surface.of_architecture(without) == pytest.approx((X + Y) / 2)
