"""The meanings against plain mathematics."""

import math

import pytest
import sympy

from search_spaces.errors import did_you_mean, shown
from search_spaces.operations import BINARY, OPERATIONS, UNARY

POINTS = (-30.0, -3.0, -1.0, -0.25, 0.0, 1e-3, 0.5, 2.0, 20.0)


def logistic(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))


REFERENCES = {
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "sigmoid": logistic,
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "swish": lambda x: x * logistic(x),
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "max": max,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary_meaning(name: str) -> None:
    meaning = OPERATIONS[name].meaning
    for point in POINTS:
        assert float(meaning(sympy.Float(point, 30))) == pytest.approx(REFERENCES[name](point), abs=1e-12), point


@pytest.mark.parametrize("name", BINARY)
def test_binary_meaning(name: str) -> None:
    for left in POINTS:
        for right in POINTS:
            value = float(OPERATIONS[name].meaning(sympy.Float(left), sympy.Float(right)))
            assert value == pytest.approx(REFERENCES[name](left, right), abs=1e-12)


def test_gelu_is_close_to_the_exact_one() -> None:
    for point in POINTS:
        exact = point * 0.5 * math.erfc(-point / math.sqrt(2))
        assert float(OPERATIONS["gelu"].meaning(sympy.Float(point))) == pytest.approx(exact, abs=1e-3)


def test_kinds() -> None:
    assert {*UNARY, *BINARY, "expand", "project", "gate"} == set(OPERATIONS)
    for operation in OPERATIONS.values():
        assert operation.arity == (2 if operation.name in BINARY else 1)
        assert operation.flops > 0 or operation.kind == "linear"


def test_did_you_mean() -> None:
    assert did_you_mean("gleu", OPERATIONS) == "; did you mean 'gelu'?"
    assert did_you_mean("SST2", ["cola", "sst2"]) == "; did you mean 'sst2'?"
    assert did_you_mean("label", ["Text", "Label"]) == "; did you mean 'Label'?"
    assert did_you_mean("q" * 10_000_000, OPERATIONS) == ""


def test_shown_is_short() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for value in ("a" * 10_000_000, deep, list(range(10_000)), {"a": deep}, math.nan):
        assert len(shown(value)) < 100
    assert shown("gelu") == "'gelu'"
