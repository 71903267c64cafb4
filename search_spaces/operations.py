"""The primitive operations of a feed-forward network (EfficientBERT, table 1), and its linear maps.

An operation is added by an entry in `UNARY` or `BINARY`, which makes it available to the search space, to formulas, to
fingerprints and to LaTeX. To run in a model it also needs an entry in `distill.encoders.student.ffn`, which has the
same two tables for PyTorch because that file ships inside every checkpoint.
"""

import math
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Operation:
    """A primitive operation, defined symbolically and numerically.

    meaning: its definition as a sympy expression of one argument `a` or of two, `a` and `b`.
    function: the same, element-wise on numpy arrays of equal shape; None for a linear map, whose weights belong to a
        layer.
    """

    meaning: str
    function: Callable[..., np.ndarray] | None = None


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """GELU in the form of EfficientBERT's operation `gelu`, x / 2 * (1 + tanh(z))."""
    # (1 + tanh(z)) / 2 is sigmoid(2 z), which keeps its precision where tanh(z) is near -1.
    return x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))


def gelu_erf(x: np.ndarray) -> np.ndarray:
    """The exact GELU, x / 2 * erfc(-x / sqrt(2)), used for `gelu` on a base with `gelu="erf"`."""
    z = -x / math.sqrt(2)
    erfc = np.where(z < 0, 2.0, 0.0)
    # Outside this range float64 rounds erfc to 2 or to 0.
    inside = (z > -6) & (z < 28)
    erfc[inside] = [math.erfc(value) for value in z[inside].tolist()]
    return x / 2 * erfc


UNARY: dict[str, Operation] = {
    "gelu": Operation("a/2 * (1 + tanh(sqrt(2/pi) * (a + 44715/1000000 * a**3)))", gelu_tanh),
    "sigmoid": Operation("1 / (1 + exp(-a))", _sigmoid),
    "tanh": Operation("tanh(a)", np.tanh),
    "relu": Operation("Max(a, 0)", lambda x: np.maximum(x, 0)),
    "leaky_relu": Operation("Max(a, a/100)", lambda x: np.maximum(x, 0.01 * x)),
    "elu": Operation("Piecewise((a, a > 0), (exp(a) - 1, True))", lambda x: np.maximum(x, np.expm1(np.minimum(x, 0)))),
    "swish": Operation("a / (1 + exp(-a))", lambda x: x * _sigmoid(x)),
}
BINARY: dict[str, Operation] = {
    "add": Operation("a + b", np.add),
    "mul": Operation("a * b", np.multiply),
    "max": Operation("Max(a, b)", np.maximum),
}
LINEAR: dict[str, Operation] = {
    "expand": Operation("W_1(a)"),
    "project": Operation("W_2(a)"),
    "gate": Operation("W_3(a)"),
}
# A live view of the three tables, which includes operations that are added to them at run time.
OPERATIONS: Mapping[str, Operation] = ChainMap(LINEAR, UNARY, BINARY)


def arity(op: str) -> int:
    """The number of arguments of an operation."""
    return 2 if op in BINARY else 1
