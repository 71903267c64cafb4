"""Which graphs, and which architectures, are the same function.

`canonical` rewrites a graph by identities that hold exactly, whatever the widths and the form of gelu: the rules in
RULES, and that add, mul and max are commutative and associative. `fingerprint` also finds twins that no rule
relates: it hashes what a graph computes on fixed inputs and weights. `function_key` does so for an architecture.
"""

import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, reduce
from typing import Any

import numpy as np

from search_spaces.architecture import Architecture, Base
from search_spaces.errors import shown
from search_spaces.graph import MAX_NODES, FFNGraph, GraphError, TermBuilder, read_terms
from search_spaces.operations import BINARY, LINEAR, OPERATIONS, UNARY, gelu_erf

# A value and how it is made: (op, *terms). What `canonical` works on has two or more arguments, sorted, in one
# binary operation.
Term = tuple[Any, ...]

VARIABLES = ("a", "b", "c", "p")

# None of these ever decreases, so each commutes with `max`.
INCREASING = ("sigmoid", "tanh", "relu", "leaky_relu", "elu")

# Left and right are equal for any values `a` and `b`, and any `p` that is never negative. Both sides have the same
# variables, hence the same width, and no right side is longer. An operation on different widths works as if the
# narrower value ended in neutral elements ("wide"), or the wider one were cut ("narrow"); rules of two variables hold
# for both. Of two arguments the first one binds `a`.
RULES: tuple[tuple[str, str], ...] = (
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
    *((f"max({op}(a),{op}(b))", f"{op}(max(a,b))") for op in INCREASING),
    ("mul(sigmoid(a),a)", "swish(a)"),
    ("mul(sigmoid(a),relu(a))", "swish(relu(a))"),
    ("mul(relu(a),relu(a))", "mul(a,relu(a))"),
    ("mul(leaky_relu(a),relu(a))", "mul(a,relu(a))"),
    ("mul(elu(a),relu(a))", "mul(a,relu(a))"),
)

# As float32 has. A few would merge similar functions; from about 28 on, rounding errors would begin to part twins.
BITS = 24

_PROBES, _TOKENS, _OUTER = 32, 8, 6
# By the order of inner and outer width.
_INNER = {-1: 4, 0: _OUTER, 1: 9}


def canonical(graph: FFNGraph) -> FFNGraph:
    """The same function in a form that many of its spellings share: no rule is left to apply, and nested add, mul or
    max are in one order. The canonical form of a canonical form is itself.

    Ordered sums may share fewer subterms than those of the graph; one that would then exceed MAX_NODES is returned
    unchanged.
    """
    builder = TermBuilder()

    def number(term: Term) -> int:
        op, *arguments = term
        numbers = [number(argument) for argument in arguments]
        if op in BINARY:
            return reduce(lambda left, right: builder.term(op, (left, right)), numbers)
        return builder.term(op, tuple(numbers))

    number(graph.fold(_simplify)[-1])
    nodes = tuple(builder.numbers)
    return FFNGraph(nodes) if len(nodes) <= MAX_NODES else graph


def fingerprint(graph: FFNGraph, base: Base, inner: int) -> str:
    """A text that graphs share which compute the same function of input and weights, and others do not, in a layer of
    `base` whose blocks have `inner` channels.

    The graph runs in float64, on fixed inputs and weights of small widths. Of the real widths only the order matters:
    it says which channels a binary operation combines (see `FFNGraph.widths`). The weights are the same for every
    graph; `project` has the leading columns it needs.

    The whole output is rounded to BITS significant bits, values below 1 to multiples of 2**-BITS, and hashed. So
    functions are the same if they agree to the precision of float32. Twins whose results differ in the
    last bits of float64 round to the same number but for about one value in 2**(50 - BITS).

    Raises GraphError if the output is not finite.
    """
    order = (inner > base.width) - (inner < base.width)
    return _fingerprint(graph, order, base.mismatch, base.gelu)


def function_key(architecture: Architecture) -> str:
    """A text that is equal for architectures that compute the same function of input and weights: the same base,
    and in every layer the same fingerprint, inner width, channels that its experts share, and other genes.

    Raises GraphError if a layer's output is not finite.
    """
    value = architecture.to_json()
    base = architecture.base
    for layer, genes in zip(value["layers"], architecture.layers, strict=True):
        inner = genes.inner(base)
        layer["graph"] = fingerprint(genes.graph, base, inner)
        layer["expansion"] = inner
        if "experts" in layer:
            layer["experts"]["shared"] = genes.shared(base)
    return _digest(json.dumps(value, sort_keys=True).encode())


def parse(text: str) -> Term:
    """The term of a formula, which may have variables."""
    return read_terms(text, lambda name, arguments: (name, *arguments))


# The rules by the operation on their left side.
_RULES: dict[str, list[tuple[Term, Term]]] = {op: [] for op in OPERATIONS}
for _left, _right in RULES:
    _RULES[_left.partition("(")[0]].append((parse(_left), parse(_right)))


def _simplify(op: str, arguments: Sequence[Term]) -> Term:
    """`op` of simplified arguments, simplified."""
    if op in BINARY:
        terms = [term for argument in arguments for term in _flat(op, argument)]
        while (fewer := _rewritten_pair(op, terms)) is not None:
            terms = fewer
        return (op, *sorted(terms)) if len(terms) > 1 else terms[0]
    term = (op, *arguments)
    for left, right in _RULES.get(op, ()):
        bound = match(left, term, {})
        if bound is not None:
            return _build(right, bound)
    return term


def _flat(op: str, term: Term) -> Term:
    """What `term` contributes to the arguments of `op`."""
    return term[1:] if term[0] == op else (term,)


def _rewritten_pair(op: str, terms: list[Term]) -> list[Term] | None:
    """The arguments of `op` after the first rule that applies to two of them; None if no rule does."""
    present = Counter(terms)
    for (_, first, second), right in _RULES[op]:
        for term in present:
            bound = match(first, term, {})
            if bound is None:
                continue
            others = present - Counter((term,))
            bounds = [bound]
            if ("b",) in second:
                matches = (match(second, other, bound) for other in others)
                bounds = [found for found in matches if found is not None]
            for bound in bounds:
                # The second argument may itself be spread over several: `max(relu(max(c,d)),c,d)`.
                partner = Counter(_flat(op, _build(second, bound)))
                if partner <= others:
                    return [*(others - partner).elements(), *_flat(op, _build(right, bound))]
    return None


def match(pattern: Term, term: Term, bound: dict[str, Term]) -> dict[str, Term] | None:
    """`bound` and what the variables of `pattern` must be for it to be `term`; None if it cannot."""
    op, *parts = pattern
    if op in VARIABLES:
        if op == "p" and not _is_never_negative(term):
            return None
        return {**bound, op: term} if bound.get(op, term) == term else None
    if term[0] != op or len(term) != len(pattern):
        return None
    for part, argument in zip(parts, term[1:], strict=True):
        more = match(part, argument, bound)
        if more is None:
            return None
        bound = more
    return bound


def _is_never_negative(term: Term) -> bool:
    """Whether no argument can make the term negative, as far as its operations tell."""
    op, *arguments = term
    if op in ("relu", "sigmoid"):
        return True
    # Every other operation but the linear maps takes values that are not negative to such values.
    return bool(arguments) and op not in LINEAR and all(map(_is_never_negative, arguments))


def _build(pattern: Term, bound: dict[str, Term]) -> Term:
    op, *parts = pattern
    return bound[op] if op in VARIABLES else _simplify(op, [_build(part, bound) for part in parts])


@cache
def _probe(order: int) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Inputs (probes, tokens, outer), and of every linear map the transposed weight (probes, in, out) and the bias
    (probes, 1, out).

    Their scales cover all magnitudes, independently of each other, so that at every place of a graph there are
    values in each branch of `max` and on the whole way into each saturation: `max(elu(a),leaky_relu(a))` is
    `leaky_relu(a)` down to a = -100. Scales differ between the tokens, the probes and the channels of the output,
    never between values that a linear map adds up, where the largest would hide the others.
    """
    inner = _INNER[order]
    x_PTD = _uniform("x", (_PROBES, _TOKENS, _OUTER), (_PROBES, _TOKENS, 1), 0.1, 1e5)
    weights = {}
    for op in LINEAR:
        inputs, outputs = (max(inner, _OUTER), _OUTER) if op == "project" else (_OUTER, inner)
        gains = (_PROBES, 1, outputs if op == "project" else 1)
        parameters = _uniform(op, (_PROBES, inputs + 1, outputs), gains, 0.3, 1e4)
        weights[op] = parameters[:, 1:] * math.sqrt(3 / inputs), parameters[:, :1]
    return x_PTD, weights


def _uniform(name: str, shape: tuple[int, ...], scales: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Uniform in [-1, 1], times scales of the broadcast shape `scales`, which are spread evenly from `low` to `high`
    on a logarithmic axis.
    """
    # The streams of RandomState are fixed for good, unlike those of numpy's newer generators.
    random = np.random.RandomState(zlib.crc32(name.encode()))
    spread = random.permutation(np.geomspace(low, high, math.prod(scales)))
    return random.uniform(-1, 1, shape) * spread.reshape(scales)


@lru_cache(maxsize=65_536)
def _fingerprint(graph: FFNGraph, order: int, mismatch: str, gelu: str) -> str:
    x_PTD, weights = _probe(order)

    def apply(op: str, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
        if op == "x":
            return x_PTD
        if op in weights:
            weight, bias = weights[op]
            return inputs[0] @ weight[:, : inputs[0].shape[-1]] + bias
        if op == "gelu" and gelu == "erf":
            return gelu_erf(inputs[0])
        function = OPERATIONS[op].function
        assert function is not None  # it is no linear map
        return function(inputs[0]) if op in UNARY else _combine(function, inputs[0], inputs[1], mismatch)

    # Saturation overflows on its way, exp(1000) in sigmoid(-1000) = 0; what matters is the output.
    with np.errstate(all="ignore"):
        output_PTD = graph.fold(apply)[-1]
    if not np.isfinite(output_PTD).all():
        raise GraphError(f"{shown(str(graph))}: the output is not finite; the graph multiplies too often")
    return _digest(_rounded(output_PTD).astype("<f8").tobytes())


def _combine(function: Callable[..., np.ndarray], a: np.ndarray, b: np.ndarray, mismatch: str) -> np.ndarray:
    """A binary operation on arrays of different widths, see `FFNGraph.widths`."""
    shared = min(a.shape[-1], b.shape[-1])
    result = function(a[..., :shared], b[..., :shared])
    if mismatch == "narrow" or a.shape[-1] == b.shape[-1]:
        return result
    wider = a if a.shape[-1] > shared else b
    return np.concatenate((result, wider[..., shared:]), axis=-1)


def _rounded(values: np.ndarray) -> np.ndarray:
    exponents = BITS - np.maximum(np.frexp(values)[1], 0)
    # Adding zero makes -0 the same as 0.
    return np.ldexp(np.rint(np.ldexp(values, exponents)), -exponents) + 0.0


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
