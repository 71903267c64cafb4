"""Graphs as mathematical formulas: sympy expressions for proofs in tests, and LaTeX for people.

Models do not need this module. Its functions import sympy lazily, which takes half a second and is rarely needed.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from search_spaces.architecture import Architecture
from search_spaces.graph import FFNGraph
from search_spaces.operations import OPERATIONS, UNARY

if TYPE_CHECKING:
    import sympy


def meaning(op: str, *arguments: "sympy.Expr") -> "sympy.Expr":
    """The result of an operation on sympy expressions, as defined by its `Operation.meaning`.

    The linear maps `expand`, `project` and `gate` are the undefined real functions W_1, W_2 and W_3.
    """
    import sympy

    maps = {name: sympy.Function(name, real=True) for name in ("W_1", "W_2", "W_3")}
    return sympy.sympify(OPERATIONS[op].meaning, locals=maps | dict(zip("ab", arguments, strict=False)))


def expression(graph: FFNGraph, named: bool = False) -> "sympy.Expr":
    """The function of a graph as a sympy expression of the real symbol `x`.

    With `named`, activations are symbolic functions (`gelu(x)`) instead of being written out.
    """
    import sympy

    def build(op: str, inputs: tuple["sympy.Expr", ...]) -> "sympy.Expr":
        if op == "x":
            return sympy.Symbol("x", real=True)
        if named and op in UNARY:
            # Otherwise LaTeX would print the part after an underscore as a subscript.
            name = r"\operatorname{" + op.replace("_", r"\_") + "}" if "_" in op else op
            return sympy.Function(name, real=True)(*inputs)
        return meaning(op, *inputs)

    return graph.fold(build)[-1]


@lru_cache(maxsize=4096)
def latex(graph: FFNGraph) -> str:
    """The formula of a graph in LaTeX, with activations by their names."""
    import sympy

    return sympy.latex(expression(graph, named=True))


def layers_latex(architecture: Architecture) -> list[str]:
    """The formula of every layer in LaTeX, the lowest layer first."""
    return [latex(ffn.graph) if ffn.stack else rf"\text{{{ffn.formula}}}" for ffn in architecture.ffns]
