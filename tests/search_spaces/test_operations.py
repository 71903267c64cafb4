"""The meanings against plain mathematics."""

import math

import numpy as np
import pytest
import sympy

from search_spaces.formula import meaning
from search_spaces.operations import BINARY, LINEAR, OPERATIONS, UNARY, arity, gelu_erf, gelu_tanh

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
    for point in POINTS:
        assert float(meaning(name, sympy.Float(point, 30))) == pytest.approx(REFERENCES[name](point), abs=1e-12), point


@pytest.mark.parametrize("name", BINARY)
def test_binary_meaning(name: str) -> None:
    for left in POINTS:
        for right in POINTS:
            value = float(meaning(name, sympy.Float(left), sympy.Float(right)))
            assert value == pytest.approx(REFERENCES[name](left, right), abs=1e-12)


def test_gelu_is_close_to_the_exact_one() -> None:
    for point in POINTS:
        exact = point * 0.5 * math.erfc(-point / math.sqrt(2))
        assert float(meaning("gelu", sympy.Float(point))) == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("name", [op for op in (*UNARY, *BINARY) if op != "gelu"])
def test_numpy_functions_are_those_of_the_definitions(name: str) -> None:
    points = np.array([-30.0, -3.0, -0.25, 0.0, 1e-3, 0.5, 2.0, 20.0])
    arguments = np.meshgrid(*[points] * arity(name))
    expected = np.vectorize(lambda *values: float(meaning(name, *map(sympy.Float, values))))(*arguments)
    function = OPERATIONS[name].function
    assert function is not None
    np.testing.assert_allclose(function(*arguments), expected, rtol=1e-13)


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_forms_of_gelu(form: str) -> None:
    for point in (-60.0, -8.0, -3.0, -0.25, 0.0, 0.5, 3.0, 8.0, 60.0):
        x = sympy.Rational(point)
        exact = meaning("gelu", x) if form == "tanh" else x / 2 * (1 + sympy.erf(x / sympy.sqrt(2)))
        with np.errstate(over="ignore"):
            result = {"tanh": gelu_tanh, "erf": gelu_erf}[form](np.array([point]))[0]
        assert result == pytest.approx(float(sympy.N(exact, 30, maxn=5000)), rel=1e-12, abs=1e-300)


def test_tables() -> None:
    assert list(OPERATIONS) == [*BINARY, *UNARY, *LINEAR]
    assert len(OPERATIONS) == len(UNARY) + len(BINARY) + len(LINEAR)
    assert {arity(op) for op in (*UNARY, *LINEAR)} == {1}
    assert {arity(op) for op in BINARY} == {2}
