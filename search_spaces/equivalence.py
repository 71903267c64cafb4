"""Detection of graphs, and of architectures, that compute the same function.

`fingerprint` hashes the output of a graph on fixed inputs and weights, and `function_key` combines the fingerprints of
an architecture's layers. This needs no algebraic rewriting: expressions that are algebraically equal have equal
outputs.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from foundation.errors import shortened
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.graph import FFNGraph
from search_spaces.operations import LINEAR, OPERATIONS, UNARY, gelu_erf
from search_spaces.terms import GraphError

# The precision of float32. With far fewer bits similar functions would collide; from about 28 bits on, rounding errors
# would begin to separate equal ones.
BITS = 24

_PROBES, _TOKENS, _OUTER = 32, 8, 6
# The inner width of the probes where the real one is smaller than, equal to or larger than the model's width.
_INNER = {-1: 4, 0: _OUTER, 1: 9}


def fingerprint(graph: FFNGraph, base: Base, inner: int) -> str:
    """A key that identifies the function of input and weights that a graph computes, in a layer of `base` whose blocks
    have `inner` channels: the same for graphs that compute the same function, different for all others.

    The graph runs in float64 on fixed inputs and weights of small widths. Only the order of the real widths matters: it
    says which channels a binary operation combines (see `FFNGraph.widths`). The weights are the same for every graph;
    `project` uses as many leading columns as it needs.

    The whole output is rounded to BITS significant bits, values below 1 to multiples of 2**-BITS, and hashed. So
    functions count as the same if they agree to the precision of float32. If the outputs of equal functions differ in
    the last bits of float64, all but about one value in 2**(50 - BITS) still round to the same number.

    Raises:
        GraphError: the output is not finite.
    """
    order = (inner > base.width) - (inner < base.width)
    return _fingerprint(graph, order, base.mismatch, base.gelu)


def function_key(architecture: Architecture) -> str:
    """A key that is the same for architectures that compute the same function of input and weights: those with the same
    base and prediction head and, in every layer, the same attention, fingerprint, inner width, number of shared
    channels, and other genes of the FFN. A layer without an FFN is one function.

    Raises:
        GraphError: the output of a layer's graph is not finite.
    """
    value = architecture.to_json()
    base = architecture.base
    for layer, ffn in zip(value["layers"], architecture.ffns, strict=True):
        if not ffn.stack:
            continue
        inner = ffn.inner(base)
        layer["ffn"] |= {"graph": fingerprint(ffn.graph, base, inner), "expansion": inner}
        if "experts" in layer["ffn"]:
            layer["ffn"]["experts"]["shared"] = ffn.shared_channels(base)
    return _digest(json.dumps(value, sort_keys=True).encode())


@cache
def _probe(order: int) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The probe inputs (probes, tokens, outer) and, for every linear map, its transposed weight (probes, in, out) and
    its bias (probes, 1, out).

    The scales of inputs and weights vary independently over several orders of magnitude, so that at every node of a
    graph values reach both branches of `max` and all parts of each saturating activation: `max(elu(a),leaky_relu(a))`
    equals `leaky_relu(a)` down to a = -100. Scales differ between tokens, probes and output channels, but not between
    values that a linear map sums up, where the largest would hide the others.
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
    """Uniform values in [-1, 1], multiplied by scales of the broadcastable shape `scales` that are evenly spaced from
    `low` to `high` on a logarithmic axis.
    """
    # numpy guarantees that the streams of RandomState never change, unlike those of its newer generators.
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

    # Overflow in intermediate results is harmless, such as exp(1000) in sigmoid(-1000) = 0; the output must be finite.
    with np.errstate(all="ignore"):
        output_PTD = graph.fold(apply)[-1]
    if not np.isfinite(output_PTD).all():
        raise GraphError(f"{shortened(str(graph))}: the output is not finite; the graph multiplies too often")
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
    # Adding zero turns -0 into 0.
    return np.ldexp(np.rint(np.ldexp(values, exponents)), -exponents) + 0.0


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
