"""The same functions have the same fingerprint and key, and different functions have different ones."""

import random
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import FFN, GELU, Architecture, Base, Experts, FFNGraph, GraphError
from search_spaces.equivalence import fingerprint, function_key
from search_spaces.graph import MISMATCH
from tests.search_spaces.identities import IDENTITIES, filled, parse, rewritten, text
from tests.search_spaces.judge import INNER, check, draws
from tests.search_spaces.strategies import architectures

BASES = [Base(2, 12, 3, 12, mismatch=mismatch, gelu=gelu) for mismatch, gelu in product(MISMATCH, ("tanh", "erf"))]
# Each variable of an identity at both widths.
VALUES = (
    {"a": "expand(x)", "b": "x", "c": "gate(x)", "p": "sigmoid(x)"},
    {"a": "x", "b": "gate(x)", "c": "tanh(x)", "p": "relu(expand(x))"},
)


def sides(identity: tuple[str, str], values: dict[str, str]) -> list[FFNGraph]:
    bound = {name: parse(value) for name, value in values.items()}
    return [FFNGraph.parse(f"project(add(expand(x),sigmoid({text(filled(parse(side), bound))})))") for side in identity]


@pytest.mark.parametrize("base", BASES, ids=lambda base: f"{base.mismatch}-{base.gelu}")
@pytest.mark.parametrize("inner", INNER)
def test_identities_keep_the_fingerprint(base: Base, inner: int) -> None:
    for identity in IDENTITIES:
        for values in VALUES:
            left, right = sides(identity, values)
            assert fingerprint(left, base, inner) == fingerprint(right, base, inner), identity


def test_rewritten_graphs_keep_the_fingerprint() -> None:
    rng = random.Random(1)
    for graph in draws(1000, rng):
        twin = rewritten(graph, rng, rng.randint(1, 8))
        base, inner = rng.choice(BASES), rng.choice(INNER)
        assert fingerprint(graph, base, inner) == fingerprint(twin, base, inner), (graph, twin)


@pytest.mark.parametrize("base", BASES, ids=lambda base: f"{base.mismatch}-{base.gelu}")
def test_fingerprints_part_what_the_student_computes_differently(base: Base) -> None:
    for inner in INNER:
        verdict = check(draws(150, random.Random(inner)), base, inner)
        assert verdict.classes > 100
        assert verdict.wrong == verdict.missed == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gelu(a)", "swish(a)"),
        ("add(a,b)", "max(a,b)"),
        ("tanh(tanh(a))", "tanh(a)"),
        ("mul(a,b)", "mul(a,relu(b))"),
        ("elu(relu(a))", "relu(elu(mul(a,a)))"),
        # Different in rare places only.
        ("max(elu(a),leaky_relu(a))", "leaky_relu(a)"),
        ("max(tanh(a),leaky_relu(leaky_relu(a)))", "leaky_relu(leaky_relu(a))"),
        ("max(gelu(a),leaky_relu(a))", "max(swish(a),leaky_relu(a))"),
        ("leaky_relu(leaky_relu(a))", "leaky_relu(elu(a))"),
        # Which linear map is activated matters to the weights.
        ("mul(gelu(expand(x)),gate(x))", "mul(expand(x),gelu(gate(x)))"),
    ],
)
@pytest.mark.parametrize(
    "place", ["project(a)", "project(gelu(expand(a)))", "leaky_relu(project(tanh(expand(a))))", "a"]
)
def test_different_functions(one: str, other: str, place: str) -> None:
    inside = {"project(a)": "expand(x)", "a": "project(sigmoid(expand(x)))"}.get(place, "x")
    if "gate" in one:
        place = "project(a)"
    bound = {"a": parse(inside), "b": parse("tanh(x)")}
    values = [text(filled(parse(place), {"a": filled(parse(value), bound)})) for value in (one, other)]
    left, right = map(FFNGraph.parse, values)
    for base in BASES:
        for inner in INNER:
            assert fingerprint(left, base, inner) != fingerprint(right, base, inner)


def test_widths_decide() -> None:
    narrow, wide = (Base(2, 12, 3, 12, mismatch=mismatch) for mismatch in ("narrow", "wide"))
    left = FFNGraph.parse("project(mul(expand(x),add(tanh(x),x)))")
    right = FFNGraph.parse("project(add(mul(expand(x),tanh(x)),mul(expand(x),x)))")
    same = {
        (base.mismatch, inner): fingerprint(left, base, inner) == fingerprint(right, base, inner)
        for base in (narrow, wide)
        for inner in INNER
    }
    # Where the rest of a wider `expand(x)` passes, the right side adds it up twice.
    assert same == {(mismatch, inner): (mismatch, inner) != ("wide", 20) for mismatch, inner in same}
    mixed = FFNGraph.parse("project(mul(expand(x),x))")
    assert fingerprint(mixed, narrow, 12) == fingerprint(mixed, wide, 12)
    assert len({fingerprint(mixed, base, inner) for base in (narrow, wide) for inner in INNER}) == 5
    assert fingerprint(mixed, narrow, 13) == fingerprint(mixed, narrow, 20)


def power(value: str, doublings: int) -> str:
    for _ in range(doublings):
        value = f"mul({value},{value})"
    return value


def test_growth_without_bounds_is_refused() -> None:
    def tower(doublings: int) -> FFNGraph:
        inner = power(f"expand({power('x', doublings)})", doublings)
        return FFNGraph.parse(power(f"project({inner})", doublings))

    with pytest.raises(GraphError, match=r"mul\(.*: the output is not finite"):
        fingerprint(tower(2), BASES[0], 12)
    with pytest.raises(GraphError, match="the output is not finite"):
        function_key(Architecture.uniform(BASES[0], tower(2)))
    fingerprint(tower(1), BASES[0], 12)


@settings(max_examples=50)
@given(architectures(), st.integers(1, 5))
def test_twins_have_one_key(architecture: Architecture, steps: int) -> None:
    rng = random.Random(steps)
    twins = (replace(ffn, graph=rewritten(ffn.graph, rng, steps)) for ffn in architecture.ffns)
    try:
        key = function_key(architecture)
    except GraphError:
        return
    assert function_key(architecture.with_ffns(tuple(twins))) == key


def test_a_key_says_everything() -> None:
    base = Base(3, 24, 4, 49)
    swish = FFNGraph.parse("project(swish(expand(x)))")
    same, first, *others = (
        Architecture.of_ffns(changed, (FFN(graph, stack, expansion), *Architecture.uniform(changed).ffns[1:]))
        for changed, graph, stack, expansion in (
            (base, swish, 2, Fraction(1, 2)),
            # Both are 24 channels wide.
            (base, FFNGraph.parse("project(mul(expand(x),sigmoid(expand(x))))"), 2, Fraction(24, 49)),
            (base, GELU, 2, Fraction(1, 2)),
            (base, swish, 1, Fraction(1, 2)),
            (base, swish, 2, Fraction(1, 3)),
            (replace(base, mismatch="wide"), swish, 2, Fraction(1, 2)),
            (replace(base, gelu="erf"), swish, 2, Fraction(1, 2)),
            (replace(base, heads=3), swish, 2, Fraction(1, 2)),
        )
    )
    others.append(first.with_ffns(first.ffns[::-1]))
    assert function_key(same) == function_key(first)
    assert len({function_key(other) for other in (first, *others)}) == 1 + len(others)


def test_keys_of_experts() -> None:
    base = Base(3, 24, 4, 49)
    plain = Architecture.uniform(base, expansion=Fraction(1, 4))  # 12 channels

    def key(of: Base = base, **changes: Any) -> str:
        experts = Experts(**{"count": 4, "shared": Fraction(1, 2)} | changes)
        return function_key(Architecture.of_ffns(of, (replace(plain.ffns[0], experts=experts), *plain.ffns[1:])))

    # All share 6 channels.
    assert key() == key(shared=Fraction(7, 13)) == key(shared=Fraction(6, 12))
    others = [
        function_key(plain),
        key(count=2),
        key(shared=Fraction(7, 12)),
        key(routing="balanced_hash"),
        key(routing="token_gate"),
        key(top_k=2),
        key(capacity=Fraction(5, 4)),
        function_key(Architecture.of_ffns(base, plain.ffns, attention_experts=2)),
        function_key(Architecture.of_ffns(base, plain.ffns, head_experts=2)),
        key(replace(base, gate_scale="probability")),
        key(replace(base, gate_jitter=0.1)),
        key(replace(base, capacity_per="batch")),
        key(replace(base, attention_capacity=Fraction(5, 4))),
    ]
    assert len({key(), *others}) == 1 + len(others)


def test_fingerprints_and_keys_do_not_depend_on_the_version() -> None:
    """Studies store them."""
    assert fingerprint(GELU, BASES[0], 12) == "559ed7dde2d3370e4c5151fc757003bb"
    assert function_key(Architecture.uniform(BASES[0])) == "2212f4e67a54aec5e0cda7b42fa788b6"
