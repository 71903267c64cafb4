"""Published architectures: EfficientBERT's (Dong et al., 2021), from the strings its authors released, and those of
BERT, MiniLM, TinyBERT, MoEBERT (Zuo et al., 2022), MiniMoE (Zhang et al., 2023) and MicroBERT (Zheng et al., 2024).

A released string names both linear maps of a layer `linear<stack>_<1/expansion>` and their weights `wb1` and
`wb2`: `linear2_2(gelu(linear2_2(max(x,tanh(x)),wb1)),wb2)` is `project(gelu(expand(max(x,tanh(x)))))`, two
blocks, half width.

The paper counts 16.0 M parameters for EfficientBERT++, which corresponds to the inner width of 540 used here. The
released configuration has an inner width of 360, hence 14.24 M.
"""

import os
import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

from foundation.errors import did_you_mean, shortened
from search_spaces.architecture import Architecture, ArchitectureError
from search_spaces.base import Base
from search_spaces.graph import FFNGraph
from search_spaces.layer import DENSE, FFN, Experts, PredictionHead
from search_spaces.terms import GraphError, read_terms

_LINEAR = re.compile(r"linear([1-9]\d?)_([1-9]\d{0,3})", re.ASCII)
_ROLES = {"wb1": "expand", "wb2": "project"}


def parse_released(text: str) -> tuple[FFNGraph, int, Fraction]:
    """The graph, stack and expansion that a released string describes. Raises GraphError."""
    names: set[str] = set()

    def formula(name: str, arguments: tuple[str, ...]) -> str:
        """Translate a released term to a formula of `FFNGraph`; names of weights are kept."""
        if name in _ROLES and not arguments:
            return name
        weights = [argument for argument in arguments if argument in _ROLES]
        if _LINEAR.fullmatch(name):
            if len(arguments) != 2 or len(weights) != 1 or arguments[1] != weights[0]:
                raise GraphError(f"{name!r} takes a value and wb1 or wb2")
            names.add(name)
            return f"{_ROLES[weights[0]]}({arguments[0]})"
        if weights or name in (*_ROLES.values(), "gate"):
            raise GraphError(f"{name!r} is not a linear map; released strings name them like 'linear2_3'")
        return f"{name}({','.join(arguments)})" if arguments else name

    graph = read_terms(text, formula)
    if len(names) != 1:
        raise GraphError(f"the linear maps of one layer have one name, found {', '.join(sorted(names)) or 'none'}")
    match = _LINEAR.fullmatch(names.pop())
    assert match is not None
    return FFNGraph.parse(graph), int(match[1]), Fraction(1, int(match[2]))


RELEASED: dict[str, tuple[str, ...]] = {
    "base": ("linear1_1(gelu(linear1_1(x,wb1)),wb2)",) * 6,
    "stage1": (
        "tanh(linear4_2(gelu(linear4_2(x,wb1)),wb2))",
        "linear2_1(gelu(linear2_1(x,wb1)),wb2)",
        "sigmoid(linear1_4(gelu(linear1_4(x,wb1)),wb2))",
        "linear4_4(gelu(linear4_4(x,wb1)),wb2)",
        "linear1_3(gelu(linear1_3(x,wb1)),wb2)",
        "leaky_relu(linear2_4(gelu(linear2_4(x,wb1)),wb2))",
    ),
    "stage2": (
        "tanh(linear4_2(gelu(linear4_2(x,wb1)),wb2))",
        "elu(linear2_1(gelu(linear2_1(x,wb1)),wb2))",
        "sigmoid(linear1_4(relu(linear1_4(x,wb1)),wb2))",
        "linear4_4(gelu(linear4_4(max(x,tanh(x)),wb1)),wb2)",
        "linear1_3(relu(mul(linear1_3(x,wb1),x)),wb2)",
        "leaky_relu(linear2_4(gelu(linear2_4(x,wb1)),wb2))",
    ),
    "efficientbert": (
        "tanh(linear4_2(gelu(linear4_2(x,wb1)),wb2))",
        "elu(linear2_1(gelu(linear2_1(x,wb1)),wb2))",
        "sigmoid(linear1_2(relu(linear1_2(x,wb1)),wb2))",
        "linear2_2(gelu(linear2_2(max(x,tanh(x)),wb1)),wb2)",
        "linear1_2(relu(mul(linear1_2(x,wb1),x)),wb2)",
        "leaky_relu(linear2_3(gelu(linear2_3(x,wb1)),wb2))",
    ),
}

_BASE = Base(depth=6, width=540, heads=12, inner=540, embedding=128)
_TINY = replace(_BASE, width=360, inner=360)
_DEEP = replace(_BASE, depth=12, width=360)
_TINYBERT6 = Base(depth=6, width=768, heads=12, inner=3072, mismatch="wide")

_BERT = Base(depth=12, width=768, heads=12, inner=3072, gelu="erf")
_TINYBERT4 = replace(_BERT, depth=4, width=312, inner=1200)
# Depth and width of MiniMoE's students; their experts have four times the width.
_MINI = ((6, 384), (4, 384), (3, 384), (4, 192), (4, 96), (3, 96))
# MiniMoE's gates and capacities are Switch's (appendix B), also where its attention has experts (figure 6).
_SWITCH: dict[str, Any] = {
    "gate_scale": "probability",
    "capacity_per": "batch",
    "attention_capacity": Fraction(5, 4),
}
_MINIMOE = Experts(4, shared=Fraction(1), routing="token_gate", capacity=Fraction(5, 4))


def _architecture(released: str) -> Architecture:
    return Architecture.of_ffns(_BASE, (FFN(*parse_released(text)) for text in RELEASED[released]))


_EFFICIENTBERT = _architecture("efficientbert")

PUBLISHED: dict[str, Architecture] = {
    "base": _architecture("base"),
    "stage1": _architecture("stage1"),
    "stage2": _architecture("stage2"),
    "efficientbert": _EFFICIENTBERT,
    "efficientbert-tiny": _EFFICIENTBERT.transferred(_TINY),
    "efficientbert++": _EFFICIENTBERT.transferred(_DEEP),
    "efficientbert-tinybert6": _EFFICIENTBERT.transferred(_TINYBERT6),
    "bert-base": Architecture.uniform(_BERT),
    "bert-large": Architecture.uniform(Base(depth=24, width=1024, heads=16, inner=4096, gelu="erf")),
    **{
        f"{name}-{depth}l-{width}h": Architecture.uniform(
            replace(_BERT, depth=depth, width=width, inner=4 * width, **gates), experts=experts
        )
        for name, experts, gates in (("minilm", DENSE, {}), ("minimoe", _MINIMOE, _SWITCH))
        for depth, width in _MINI
    },
    # The teacher assistant of MiniLM, and figure 5's other routing, which has no capacity.
    "minilm-12l-384h": Architecture.uniform(replace(_BERT, width=384, inner=1536)),
    "minimoe-4l-384h-hash": Architecture.uniform(
        replace(_BERT, depth=4, width=384, inner=1536, **_SWITCH), experts=Experts(4, shared=Fraction(1))
    ),
    "moebert": Architecture.uniform(_BERT, expansion=Fraction(1, 4), experts=Experts(4, shared=Fraction(2, 3))),
    "tinybert-4": Architecture.uniform(_TINYBERT4),
    "microbert": Architecture.uniform(_TINYBERT4),
    # MicroBERT's head has experts (equations 4 and 5), the number of which the paper does not give.
    "microbert-4e": replace(Architecture.uniform(_TINYBERT4), head=PredictionHead(4)),
}


def load(name: str) -> Architecture:
    """The published architecture of this name, or the one in this file. Raises ArchitectureError."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    if os.sep in name or name.endswith(".json") or os.path.lexists(name):
        return Architecture.load(name)
    raise ArchitectureError(
        f"{shortened(name)} is neither a file nor a published architecture"
        f"{did_you_mean(name, PUBLISHED)}; published are {', '.join(PUBLISHED)}"
    )
