"""Rules are proved; the same functions have the same fingerprint and key, and different ones different ones."""

import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.duplicates import DOUBLE, INNER, LAWS, UNKNOWN, Judge, agree, check, draws, rewritten
from search_spaces import GELU, OPERATIONS, PUBLISHED, Architecture, Base, FFNGraph, Genes, GraphError
from search_spaces.canonical import (
    _BINARY,
    _GELU,
    _UNARY,
    RULES,
    VARIABLES,
    Term,
    canonical,
    fingerprint,
    function_key,
    parse,
)
from tests.search_spaces.strategies import architectures, graphs

BASES = [Base(2, 12, 3, 12, mismatch=mismatch, gelu=gelu) for mismatch in ("narrow", "wide") for gelu in ("tanh", "erf")]
IDENTITIES = (*RULES, *LAWS, *UNKNOWN)
REAL = sympy.Symbol("z", real=True)
GELU_FORMS = (OPERATIONS["gelu"].meaning, lambda x: x / 2 * (1 + sympy.erf(x / sympy.sqrt(2))))

each_identity = pytest.mark.parametrize("identity", IDENTITIES, ids=" = ".join)


# Proofs. Both sides of an identity are continuous, so they agree everywhere if they do where no two of the variables
# and zero are equal. There are finitely many orders of those; in each, every variable is a sum of positive gaps.


def regions(variables: list[str]) -> Iterator[dict[str, sympy.Expr]]:
    gaps = sympy.symbols(f"g:{len(variables)}", positive=True)
    for order in permutations([*variables, "0"]):
        zero = order.index("0")
        if "p" in order[:zero]:
            continue
        yield {
            name: sympy.Add(*gaps[zero:place]) - sympy.Add(*gaps[place:zero])
            for place, name in enumerate(order)
            if name != "0"
        }


def is_nonnegative(value: sympy.Expr, depth: int = 2) -> bool:
    """Whether that is proved for positive symbols: as a rational function of them and of what exp, tanh and erf of
    positive arguments can be, or because it is zero at zero and does not fall from there.
    """
    value = value.rewrite(sympy.tanh, sympy.exp) if value.has(sympy.tanh) else value
    names: dict[sympy.Expr, sympy.Symbol] = {}

    def name(argument: sympy.Expr) -> sympy.Symbol:
        return names.setdefault(argument, sympy.Symbol(f"k{len(names)}", positive=True))

    def power(argument: sympy.Expr) -> sympy.Expr:
        factor, rest = argument.as_coeff_Mul()
        return (1 + name(rest)) ** factor if rest.is_positive else sympy.exp(argument)

    general = value.rewrite(sympy.exp).replace(sympy.exp, power)
    general = general.replace(sympy.erf, lambda z: 1 / (1 + name(z)) if z.is_positive else sympy.erf(z))
    if sympy.factor(sympy.together(general)).is_nonnegative:
        return True
    return depth > 0 and any(
        is_nonnegative(value.subs(symbol, 0), 0) and is_nonnegative(sympy.diff(value, symbol), depth - 1)
        for symbol in sorted(value.free_symbols, key=str)
    )


def decided(value: sympy.Expr) -> sympy.Expr:
    """The larger of two, which must be provable."""
    if not isinstance(value, sympy.Max):
        return value
    first, second = value.args
    return first if is_nonnegative(first - second) else second if is_nonnegative(second - first) else value


def meaning(term: Term, values: dict[str, sympy.Expr], gelu: Callable[..., sympy.Expr]) -> sympy.Expr | None:
    """Of a channel that some variables do not have (None), with the mismatch "wide"."""
    op, *arguments = term
    if op in VARIABLES:
        return values.get(op)
    inputs = [value for argument in arguments if (value := meaning(argument, values, gelu)) is not None]
    if len(inputs) < OPERATIONS[op].arity:
        return inputs[0] if inputs and OPERATIONS[op].arity == 2 else None
    return decided((gelu if op == "gelu" else OPERATIONS[op].meaning)(*inputs))


def variables(term: Term) -> set[str]:
    return {term[0]} if term[0] in VARIABLES else set().union(*map(variables, term[1:]))


def size(term: Term) -> int:
    return 1 + sum(map(size, term[1:]))


@each_identity
def test_identity(identity: tuple[str, str]) -> None:
    left, right = map(parse, identity)
    # With "narrow", a channel exists if all variables have it.
    assert variables(left) == variables(right)
    names = sorted(variables(left))
    for missing in product((False, True), repeat=len(names)):
        present = [name for name, gone in zip(names, missing, strict=True) if not gone]
        for gelu in GELU_FORMS if "gelu" in identity[0] else GELU_FORMS[:1]:
            for values in regions(present):
                results = [meaning(side, values, gelu) for side in (left, right)]
                assert results[0] == results[1] or sympy.simplify(results[0] - results[1]) == 0, values
