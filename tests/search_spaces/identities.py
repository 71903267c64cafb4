"""Identities of graphs, and graphs rewritten by them: spellings of a function that must have one fingerprint.

The variables `a`, `b` and `c` stand for any values, `p` for one that is never negative. Both sides have the same
variables, so they hold whatever the widths of those and the treatment of different widths, and for both forms of gelu.
"""

import random
from collections.abc import Iterator
from typing import Any

from search_spaces import BINARY, FFNGraph, GraphError
from search_spaces.operations import LINEAR
from search_spaces.terms import read_terms

# A value and how it is made: (operation, *terms), or (variable,).
Term = tuple[Any, ...]

VARIABLES = ("a", "b", "c", "p")
# None of these ever decreases, so each commutes with `max`.
INCREASING = ("sigmoid", "tanh", "relu", "leaky_relu", "elu")

IDENTITIES = (
    *((f"{op}(a,b)", f"{op}(b,a)") for op in BINARY),
    *((f"{op}(a,{op}(b,c))", f"{op}({op}(a,b),c)") for op in BINARY),
    *((f"max({op}(a),{op}(b))", f"{op}(max(a,b))") for op in INCREASING),
    ("relu(p)", "p"),
    ("leaky_relu(p)", "p"),
    ("elu(p)", "p"),
    ("relu(leaky_relu(a))", "relu(a)"),
    ("relu(elu(a))", "relu(a)"),
    ("relu(tanh(a))", "tanh(relu(a))"),
    ("relu(gelu(a))", "gelu(relu(a))"),
    ("relu(swish(a))", "swish(relu(a))"),
    ("max(a,a)", "a"),
    ("max(relu(a),a)", "relu(a)"),
    ("max(leaky_relu(a),a)", "leaky_relu(a)"),
    ("max(elu(a),a)", "elu(a)"),
    ("max(leaky_relu(a),relu(a))", "relu(a)"),
    ("max(elu(a),relu(a))", "relu(a)"),
    ("max(tanh(a),relu(a))", "relu(a)"),
    ("max(gelu(a),relu(a))", "relu(a)"),
    ("max(swish(a),relu(a))", "relu(a)"),
    ("max(tanh(a),elu(a))", "elu(a)"),
    ("mul(sigmoid(a),a)", "swish(a)"),
    ("mul(sigmoid(a),relu(a))", "swish(relu(a))"),
    ("mul(relu(a),relu(a))", "mul(a,relu(a))"),
    ("mul(leaky_relu(a),relu(a))", "mul(a,relu(a))"),
    ("mul(elu(a),relu(a))", "mul(a,relu(a))"),
    ("relu(mul(p,a))", "mul(p,relu(a))"),
    ("leaky_relu(mul(p,a))", "mul(p,leaky_relu(a))"),
    ("relu(mul(a,a))", "mul(a,a)"),
    ("relu(add(a,a))", "add(relu(a),relu(a))"),
    ("leaky_relu(add(a,a))", "add(leaky_relu(a),leaky_relu(a))"),
    ("max(add(a,a),add(b,b))", "add(max(a,b),max(a,b))"),
    ("relu(max(a,relu(b)))", "relu(max(a,b))"),
    ("max(mul(a,a),mul(a,relu(a)))", "mul(a,a)"),
    ("mul(add(a,a),a)", "add(mul(a,a),mul(a,a))"),
    ("mul(sigmoid(a),add(a,a))", "add(swish(a),swish(a))"),
    ("mul(gelu(a),relu(a))", "mul(gelu(relu(a)),a)"),
    ("mul(tanh(a),relu(a))", "mul(tanh(relu(a)),a)"),
)


def parse(text: str) -> Term:
    """The term of a formula, which may have variables."""
    return read_terms(text, lambda name, arguments: (name, *arguments))


def text(term: Term) -> str:
    """The formula of a term, the inverse of `parse`."""
    return f"{term[0]}({','.join(map(text, term[1:]))})" if term[1:] else term[0]


def filled(pattern: Term, bound: dict[str, Term]) -> Term:
    """`pattern` with its variables replaced by the terms they are bound to."""
    return bound.get(pattern[0]) or (pattern[0], *(filled(part, bound) for part in pattern[1:]))


_SIDES = [(parse(before), parse(after)) for identity in IDENTITIES for before, after in (identity, identity[::-1])]


def rewritten(graph: FFNGraph, rng: random.Random, steps: int) -> FFNGraph:
    """Another spelling of `graph`, after `steps` identities, each read in either direction, at random places."""
    term = parse(str(graph))
    while steps:
        place = rng.choice(sorted(set(_subterms(term))))
        before, after = rng.choice(_SIDES)
        bound = _match(before, place, {})
        if bound is None:
            continue
        # At every occurrence, or there would be two different `expand`.
        spelling = _replaced(term, place, filled(after, bound))
        try:
            graph = FFNGraph.parse(text(spelling))
        except GraphError:  # too large
            continue
        term = spelling
        steps -= 1
    return graph


def _match(pattern: Term, term: Term, bound: dict[str, Term]) -> dict[str, Term] | None:
    """`bound` and what the variables of `pattern` must be for it to be `term`; None if it cannot."""
    op, *parts = pattern
    if op in VARIABLES:
        if op == "p" and not _is_never_negative(term):
            return None
        return {**bound, op: term} if bound.get(op, term) == term else None
    if term[0] != op or len(term) != len(pattern):
        return None
    for part, argument in zip(parts, term[1:], strict=True):
        extended = _match(part, argument, bound)
        if extended is None:
            return None
        bound = extended
    return bound


def _is_never_negative(term: Term) -> bool:
    """Whether no argument can make the term negative, as far as its operations tell."""
    op, *arguments = term
    if op in ("relu", "sigmoid"):
        return True
    # Every other operation but the linear maps takes values that are not negative to such values.
    return bool(arguments) and op not in LINEAR and all(map(_is_never_negative, arguments))


def _subterms(term: Term) -> Iterator[Term]:
    yield term
    for argument in term[1:]:
        yield from _subterms(argument)


def _replaced(term: Term, old: Term, new: Term) -> Term:
    return new if term == old else (term[0], *(_replaced(argument, old, new) for argument in term[1:]))
