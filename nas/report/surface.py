"""The nonlinearity of FFNs as a function of two input channels (EfficientBERT, figure 5).

The operations of a graph are those of `search_spaces.operations`. Each linear map has the weights 1 and the bias 0, so
that what is left is what the operations do: it is the sum of its two input channels. (The paper does not say how many
inner channels there are.) The value is the mean over the two output channels. For a whole architecture every block is
h <- (h + f(h)) / 2, with a mean in place of the LayerNorm and without attention.

The formula of a graph (`search_spaces.formula.expression`) is the same function, but sympy takes minutes to insert
values into a nested maximum.
"""

import numpy as np

from search_spaces.architecture import Architecture
from search_spaces.graph import FFNGraph
from search_spaces.operations import OPERATIONS

# Both inputs are in this range, as in the paper.
LOWEST, HIGHEST = -15.0, 5.0
POINTS = 41


def grid() -> np.ndarray:
    """The two inputs at which surfaces are computed, (2, POINTS, POINTS)."""
    values = np.linspace(LOWEST, HIGHEST, POINTS)
    return np.stack(np.meshgrid(values, values))


def applied(graph: FFNGraph, x_CPP: np.ndarray) -> np.ndarray:
    """The output channels of a graph, of the same shape as its input channels.

    Args:
        x_CPP: two channels at any points.
    """

    def combine(op: str, arguments: tuple[np.ndarray, ...]) -> np.ndarray:
        if op == "x":
            return x_CPP
        function = OPERATIONS[op].function
        if function is None:
            return np.broadcast_to(arguments[0].sum(axis=0), x_CPP.shape)
        # exp(-x) in sigmoid and swish; products of deep models (`fits`).
        with np.errstate(over="ignore", invalid="ignore"):
            result: np.ndarray = function(*arguments)
        return result

    return graph.fold(combine)[-1]


def fits(surface_PP: np.ndarray) -> bool:
    """Whether all values are numbers in float32, in which models compute. Products of products soon are not."""
    return bool((np.abs(surface_PP) <= np.finfo(np.float32).max).all())


def of_graph(graph: FFNGraph) -> np.ndarray:
    """The surface of one FFN on `grid`, (POINTS, POINTS)."""
    surface: np.ndarray = applied(graph, grid()).mean(axis=0)
    return surface


def of_architecture(architecture: Architecture) -> np.ndarray:
    """The surface of all blocks of an architecture one after the other on `grid`, (POINTS, POINTS)."""
    hidden_CPP = grid()
    for ffn in architecture.ffns:
        for _ in range(ffn.stack):
            hidden_CPP = (hidden_CPP + applied(ffn.graph, hidden_CPP)) / 2
    surface: np.ndarray = hidden_CPP.mean(axis=0)
    return surface
