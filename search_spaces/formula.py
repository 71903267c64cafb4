"""A graph as mathematics: for proofs in tests, and for people to read. Never needed to run a network."""

import sympy

from search_spaces.graph import FFNGraph
from search_spaces.operations import OPERATIONS


def expression(graph: FFNGraph, named: bool = False) -> sympy.Expr:
    """The function as a sympy expression of the real symbol `x`; W_1, W_2 and W_3 are `expand`, `project` and
    `gate`.

    With `named`, activations stay functions of their names (`gelu(x)`) instead of being written out.
    """

    def build(op: str, inputs: tuple[sympy.Expr, ...]) -> sympy.Expr:
        if op == "x":
            return sympy.Symbol("x", real=True)
        if named and OPERATIONS[op].kind == "unary":
            return sympy.Function(op, real=True)(*inputs)
        return OPERATIONS[op].meaning(*inputs)

    return graph.fold(build)[-1]


def latex(graph: FFNGraph) -> str:
    """The readable formula in LaTeX."""
    return sympy.latex(expression(graph, named=True))
