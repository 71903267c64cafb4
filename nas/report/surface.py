"""The nonlinearity of FFNs as a function of two input channels (EfficientBERT, figure 5).

The function of a graph is its formula (`search_spaces.formula.expression`), in which each linear map is replaced by the
mean over its input channels: its weights are equal, and its bias is 0. So what is left is what the operations do. The
value is the mean over the two output channels. For a whole architecture every block is h <- (h + f(h)) / 2, with a mean
in place of the LayerNorm and without attention. The paper has weights of 1 instead, by which values grow with the
width.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from search_spaces.architecture import Architecture
from search_spaces.formula import expression
from search_spaces.graph import FFNGraph

# Both inputs are in this range, as in the paper.
LOWEST, HIGHEST = -15.0, 5.0
POINTS = 41

Channels = tuple[np.ndarray, np.ndarray]


@cache
def function_of(graph: FFNGraph) -> Callable[[np.ndarray, np.ndarray], Channels]:
    """The two output channels of a graph as a function of two input channels, arrays of equal shape."""
    import sympy

    x = sympy.Symbol("x", real=True)
    first, second = sympy.symbols("first second", real=True)

    def averaged(value: Any) -> Any:
        return (value.subs(x, first) + value.subs(x, second)) / 2

    def resolved(value: Any) -> Any:
        """The expression without linear maps: the innermost are replaced first."""
        if not value.args:
            return value
        arguments = [resolved(argument) for argument in value.args]
        if isinstance(value, sympy.core.function.AppliedUndef):
            return averaged(arguments[0])
        return value.func(*arguments)

    result = resolved(expression(graph))
    numeric = sympy.lambdify((first, second), (result.subs(x, first), result.subs(x, second)), "numpy")

    def function(one: np.ndarray, two: np.ndarray) -> Channels:
        with np.errstate(over="ignore"):  # exp(-x) of sigmoid and swish
            outputs = numeric(one, two)
        shape = np.broadcast(one, two).shape
        return np.broadcast_to(outputs[0], shape), np.broadcast_to(outputs[1], shape)

    return function


def grid() -> Channels:
    """The points at which surfaces are computed, (POINTS, POINTS) each."""
    values = np.linspace(LOWEST, HIGHEST, POINTS)
    one, two = np.meshgrid(values, values)
    return one, two


def of_graph(graph: FFNGraph) -> np.ndarray:
    """The surface of one FFN on `grid`, (POINTS, POINTS)."""
    one, two = function_of(graph)(*grid())
    surface: np.ndarray = (one + two) / 2
    return surface


def of_architecture(architecture: Architecture) -> np.ndarray:
    """The surface of all blocks of an architecture one after the other on `grid`, (POINTS, POINTS)."""
    one, two = grid()
    for genes in architecture.layers:
        for _ in range(genes.stack):
            f_one, f_two = function_of(genes.graph)(one, two)
            one, two = (one + f_one) / 2, (two + f_two) / 2
    surface: np.ndarray = (one + two) / 2
    return surface
