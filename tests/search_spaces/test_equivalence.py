"""Rules are proved; the same functions have the same fingerprint and key, and different ones different ones."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import permutations, product
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search.duplicates import (
    DOUBLE,
    INNER,
    LAWS,
    UNKNOWN,
    Judge,
    agree,
    check,
    draws,
    filled,
    rewritten,
    text,
)
from search_spaces import GELU, PUBLISHED, Architecture, Base, Experts, FFNGraph, Genes, GraphError
from search_spaces.equivalence import RULES, VARIABLES, Term, canonical, fingerprint, function_key, parse
from search_spaces.formula import meaning
from search_spaces.graph import MISMATCH
from search_spaces.operations import BINARY, UNARY, arity
from tests.search_spaces.strategies import architectures, graphs

BASES = [Base(2, 12, 3, 12, mismatch=mismatch, gelu=gelu) for mismatch, gelu in product(MISMATCH, ("tanh", "erf"))]
IDENTITIES = (*RULES, *LAWS, *UNKNOWN)
GELU_FORMS = (partial(meaning, "gelu"), lambda x: x / 2 * (1 + sympy.erf(x / sympy.sqrt(2))))

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
    """Whether that is proved for positive symbols: as a rational function of them and of anything that exp, tanh and
    erf of positive arguments can be, or because it is zero at zero and does not fall from there.
    """
    names: dict[sympy.Expr, sympy.Symbol] = {}

    def name(argument: sympy.Expr) -> sympy.Symbol:
        assert argument.is_positive
        return names.setdefault(argument, sympy.Symbol(f"k{len(names)}", positive=True))

    def bounded(argument: sympy.Expr) -> sympy.Expr:
        return -bounded(-argument) if argument.is_negative else 1 / (1 + name(argument))

    def power(argument: sympy.Expr) -> sympy.Expr:
        result = sympy.Integer(1)
        for term in sympy.Add.make_args(sympy.expand(argument)):
            factor, rest = term.as_coeff_Mul()
            if not factor.is_Integer:
                factor, rest = sympy.sign(factor), abs(factor) * rest
            result *= (1 + name(rest)) ** factor
        return result

    # Of tanh either that it is between 0 and 1, or what it has to do with exp.
    for start in (value.replace(sympy.tanh, bounded), value.rewrite(sympy.exp)):
        general = start.replace(sympy.erf, bounded).replace(sympy.exp, power)
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


def value_of(term: Term, values: dict[str, sympy.Expr], gelu: Callable[..., sympy.Expr]) -> sympy.Expr | None:
    """Of a channel that some variables do not have (None), with the mismatch "wide"."""
    op, *arguments = term
    if op in VARIABLES:
        return values.get(op)
    inputs = [value for argument in arguments if (value := value_of(argument, values, gelu)) is not None]
    if len(inputs) < arity(op):
        return inputs[0] if inputs and op in BINARY else None
    return decided(gelu(*inputs) if op == "gelu" else meaning(op, *inputs))


def variables(term: Term) -> set[str]:
    return {term[0]} if term[0] in VARIABLES else set().union(*map(variables, term[1:]))


def size(term: Term) -> int:
    return 1 + sum(map(size, term[1:]))


@each_identity
def test_identities_are_true(identity: tuple[str, str]) -> None:
    left, right = map(parse, identity)
    # With "narrow", a channel exists if all variables have it.
    assert variables(left) == variables(right)
    names = sorted(variables(left))
    for missing in product((False, True), repeat=len(names)):
        present = [name for name, gone in zip(names, missing, strict=True) if not gone]
        for gelu in GELU_FORMS if "gelu" in identity[0] else GELU_FORMS[:1]:
            for values in regions(present):
                one, other = (value_of(side, values, gelu) for side in (left, right))
                assert one == other or sympy.simplify(one - other) == 0, values


@pytest.mark.parametrize("identity", [("relu(a)", "a"), ("max(tanh(a),leaky_relu(a))", "leaky_relu(a)")])
def test_a_proof_can_fail(identity: tuple[str, str]) -> None:
    with pytest.raises(AssertionError):
        test_identities_are_true(identity)


@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_what_is_never_negative(op: str) -> None:
    values = sympy.symbols("p q", positive=True)[: arity(op)]
    for gelu in GELU_FORMS:
        assert is_nonnegative(gelu(*values) if op == "gelu" else meaning(op, *values))
    never, ever = ("sigmoid(expand(x))", "relu(gate(x))"), ("expand(x)", "relu(gate(x))")
    for arguments, dropped in ((never, True), (ever, op in ("relu", "sigmoid"))):
        value = f"{op}({','.join(arguments[: arity(op)])})"
        # `elu` distinguishes them from all that a rule on `relu` may do.
        graphs = [canonical(FFNGraph.parse(f"project({text})")) for text in (value, f"elu({value})")]
        assert (graphs[0] == graphs[1]) == dropped


# The canonical form.

# Each variable of an identity at both widths.
VALUES = (
    {"a": "expand(x)", "b": "x", "c": "gate(x)", "p": "sigmoid(x)"},
    {"a": "x", "b": "gate(x)", "c": "tanh(x)", "p": "relu(expand(x))"},
)


def sides(identity: tuple[str, str], values: dict[str, str]) -> list[FFNGraph]:
    bound = {name: parse(value) for name, value in values.items()}
    return [FFNGraph.parse(f"project(add(expand(x),sigmoid({text(filled(parse(side), bound))})))") for side in identity]


@pytest.mark.parametrize("rule", [*RULES, *LAWS], ids=" = ".join)
def test_every_rule_is_applied(rule: tuple[str, str]) -> None:
    for values in VALUES:
        left, right = sides(rule, values)
        assert left != right
        assert canonical(left) == canonical(right)


@pytest.mark.parametrize(
    ("graph", "form"),
    [
        ("project(gelu(expand(x)))", "project(gelu(expand(x)))"),
        ("project(max(expand(x),x))", "project(max(expand(x),x))"),
        ("project(mul(x,mul(gate(x),expand(x))))", "project(mul(mul(expand(x),gate(x)),x))"),
        ("project(max(relu(max(expand(x),x)),max(x,expand(x))))", "project(relu(max(expand(x),x)))"),
        ("project(mul(mul(x,expand(x)),sigmoid(mul(expand(x),x))))", "project(swish(mul(expand(x),x)))"),
        ("elu(relu(tanh(project(leaky_relu(elu(relu(expand(x))))))))", "tanh(relu(project(relu(expand(x)))))"),
        ("project(mul(relu(expand(x)),relu(expand(x))))", "project(mul(expand(x),relu(expand(x))))"),
        # Not where the value that is never negative ends before the other one.
        ("project(max(relu(expand(x)),sigmoid(x)))", "project(max(relu(expand(x)),sigmoid(x)))"),
    ],
)
def test_canonical_forms(graph: str, form: str) -> None:
    assert str(canonical(FFNGraph.parse(graph))) == form


@settings(max_examples=300)
@given(graphs())
def test_a_canonical_form_is_its_own(graph: FFNGraph) -> None:
    form = canonical(graph)
    assert canonical(form) == form
    assert len(str(form)) <= len(str(graph))


def test_a_graph_that_would_grow_too_large_is_kept() -> None:
    # The shared sum of `elu(x)` and `x` is no partial sum once the value between them in the order joins.
    inner = ("gelu", "swish", "tanh", "elu")
    between = [f"{outer}({op}(x))" for outer in ("gelu", "leaky_relu", "sigmoid", "swish", "tanh") for op in inner]
    formula = "expand(x)"
    for value in between[:17]:
        formula = f"mul({formula},add(add(elu(x),x),{value}))"
    graph = FFNGraph.parse(f"project({formula})")
    assert canonical(graph) == graph


@settings(max_examples=100, deadline=None)
@given(graphs(), st.sampled_from(BASES), st.sampled_from(INNER))
def test_a_canonical_form_is_the_same_function(graph: FFNGraph, base: Base, inner: int) -> None:
    judge = Judge(base, inner)
    output, form = judge.output(graph), judge.output(canonical(graph))
    # Where the powers of a large value overflow, they do so in another order.
    finite = (output.isfinite() & form.isfinite()).all(-1)
    assert agree(output[finite], form[finite], DOUBLE)


# The fingerprint.


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
        classes, wrong, missed = check(draws(150, random.Random(inner)), base, inner, [])
        assert classes > 100
        assert wrong == missed == 0


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


def test_forms_of_gelu() -> None:
    tanh, erf = BASES[:2]
    assert fingerprint(GELU, tanh, 12) != fingerprint(GELU, erf, 12)


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


# The key of an architecture.


@settings(max_examples=50)
@given(architectures(), st.integers(1, 5))
def test_twins_have_one_key(architecture: Architecture, steps: int) -> None:
    rng = random.Random(steps)
    twins = (replace(genes, graph=rewritten(genes.graph, rng, steps)) for genes in architecture.layers)
    try:
        key = function_key(architecture)
    except GraphError:
        return
    assert function_key(replace(architecture, layers=tuple(twins))) == key


def test_a_key_says_everything() -> None:
    base = Base(3, 24, 4, 49)
    swish = FFNGraph.parse("project(swish(expand(x)))")
    same, first, *others = (
        Architecture(changed, (Genes(graph, stack, expansion), *Architecture.uniform(changed).layers[1:]))
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
    others.append(replace(first, layers=first.layers[::-1]))
    assert function_key(same) == function_key(first)
    assert len({function_key(other) for other in (first, *others)}) == 1 + len(others)


def test_keys_of_experts() -> None:
    base = Base(3, 24, 4, 49)
    plain = Architecture.uniform(base, expansion=Fraction(1, 4))  # 12 channels

    def key(of: Base = base, **changes: Any) -> str:
        experts = Experts(**{"count": 4, "shared": Fraction(1, 2)} | changes)
        return function_key(Architecture(of, (replace(plain.layers[0], experts=experts), *plain.layers[1:])))

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
        key(replace(base, attention_experts=2)),
    ]
    assert len({key(), *others}) == 1 + len(others)


def test_keys_do_not_depend_on_the_version() -> None:
    """Studies store them."""
    assert function_key(Architecture.uniform(BASES[0])) == "e7eba189329fb421881fc7df3905145b"


def test_keys_do_not_depend_on_the_process() -> None:
    names = ("efficientbert", "efficientbert-tinybert6")
    program = (
        "from search_spaces import PUBLISHED\n"
        "from search_spaces.equivalence import function_key\n"
        f"print([function_key(PUBLISHED[name]) for name in {names}])"
    )
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == str([function_key(PUBLISHED[name]) for name in names])


def test_fingerprints_do_not_depend_on_the_version() -> None:
    """They are stored with the trials of a study."""
    assert fingerprint(GELU, BASES[0], 12) == "559ed7dde2d3370e4c5151fc757003bb"
