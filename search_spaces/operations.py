"""The primitive operations of a feed-forward network (EfficientBERT, table 1), and its linear maps.

`meaning` is the definition every implementation is tested against. `flops` counts scalar operations per
element of the result: an addition, product, quotient, comparison, `exp` or `tanh` is one each; the
multiply-accumulates of the linear maps are counted elsewhere (`search_spaces.cost`).
"""

import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'gelu'?"` if a known word is close to `word`, else the empty string."""
    spelled = {name.lower(): name for name in known}
    close = get_close_matches(word[:60].lower(), spelled, n=1)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""


def shown(value: object, limit: int = 60) -> str:
    """`repr(value)`, cut to a length that fits into one line of an error."""
    # Never the full repr: the value may be megabytes of text, or lists nested a thousand deep.
    text = repr(value[: limit + 1]) if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= limit + 2 else f"{text[: limit - 3]}..."
