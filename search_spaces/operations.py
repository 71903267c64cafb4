"""The primitive operations of a feed-forward network (EfficientBERT, table 1), and its linear maps.

`meaning` is the definition every implementation is tested against. `flops` counts scalar operations per
element of the result: an addition, product, quotient, comparison, `exp` or `tanh` is one each; the
multiply-accumulates of the linear maps are counted elsewhere (`search_spaces.cost`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import sympy


@dataclass(frozen=True)
class Operation:
    """`kind` is "linear", "unary" or "binary"; `meaning` builds a sympy expression from sympy arguments."""

    name: str
    arity: int
    kind: str
    meaning: Callable[..., sympy.Expr]
    flops: int


def _gelu(x: sympy.Expr) -> sympy.Expr:
    cubic = x + sympy.Rational(44715, 1_000_000) * x**3
    return x / 2 * (1 + sympy.tanh(sympy.sqrt(2 / sympy.pi) * cubic))


def _sigmoid(x: sympy.Expr) -> sympy.Expr:
    return 1 / (1 + sympy.exp(-x))


def _elu(x: sympy.Expr) -> sympy.Expr:
    return sympy.Piecewise((x, x > 0), (sympy.exp(x) - 1, True))


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("add", 2, "binary", lambda a, b: a + b, 1),
        Operation("mul", 2, "binary", lambda a, b: a * b, 1),
        Operation("max", 2, "binary", lambda a, b: sympy.Max(a, b), 1),
        Operation("gelu", 1, "unary", _gelu, 9),
        Operation("sigmoid", 1, "unary", _sigmoid, 4),
        Operation("tanh", 1, "unary", lambda x: sympy.tanh(x), 1),
        Operation("relu", 1, "unary", lambda x: sympy.Max(x, 0), 1),
        Operation("leaky_relu", 1, "unary", lambda x: sympy.Max(x, x / 100), 2),
        Operation("elu", 1, "unary", _elu, 3),
        Operation("swish", 1, "unary", lambda x: x * _sigmoid(x), 5),
        Operation("expand", 1, "linear", sympy.Function("W_1", real=True), 0),
        Operation("project", 1, "linear", sympy.Function("W_2", real=True), 0),
        Operation("gate", 1, "linear", sympy.Function("W_3", real=True), 0),
    )
}
UNARY: tuple[str, ...] = tuple(name for name, operation in OPERATIONS.items() if operation.kind == "unary")
BINARY: tuple[str, ...] = tuple(name for name, operation in OPERATIONS.items() if operation.kind == "binary")
