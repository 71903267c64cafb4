"""How choices spell a feed-forward graph, and which choices spell a given one.

A graph is

    post(project(mid(expand(pre(x)))))

where each segment is one operation: nothing (not for `mid`), an activation, or a binary operation of the
segment's own value with any earlier value of the layer, each of them plain or activated, and the result plain
or activated. So `x` and intermediate results are reused, and what the rules of `breaks_rules` forbid cannot
be spelled. With `gated`, `mid` may also use `gate(pre)`, a second linear map: GeGLU is `mul(gelu(expand(x)),gate(x))`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from search_spaces.graph import FFNGraph
from search_spaces.operations import BINARY, UNARY

PLAIN = "plain"
ACTIVATIONS = (PLAIN, *UNARY)
SEGMENTS = ("pre", "mid", "post")


class Trial(Protocol):
    """The part of `optuna.Trial` that a space needs."""

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str: ...

    def suggest_float(self, name: str, low: float, high: float) -> float: ...


def suggest_graph(trial: Trial, name: str, activation: str, gated: bool) -> FFNGraph:
    """The graph that the choices under `name` spell; the first ones give `project(activation(expand(x)))`."""
    pre = _suggest_segment(trial, f"{name}/pre", "none", "x", {})
    earlier = _earlier(pre)
    gates = {"gate": f"gate({pre})"} if gated else {}
    mid = _suggest_segment(trial, f"{name}/mid", activation, f"expand({pre})", earlier | gates)
    return _parsed(_suggest_segment(trial, f"{name}/post", "none", f"project({mid})", earlier))


def choices_of(graph: FFNGraph, name: str, gated: bool) -> dict[str, str] | None:
    """The choices with which `suggest_graph` gives this graph; None if no choices do."""
    texts = graph.texts
    pre = texts[graph.nodes[graph.find("expand")].inputs[0]]
    mid = texts[graph.nodes[graph.find("project")].inputs[0]]
    earlier = _earlier(pre)
    gates = {"gate": f"gate({pre})"} if gated else {}
    segments: tuple[tuple[str, str, dict[str, str]], ...] = (
        (pre, "x", {}),
        (mid, f"expand({pre})", earlier | gates),
        (texts[-1], f"project({mid})", earlier),
    )
    result: dict[str, str] = {}
    for segment, (text, own, sources) in zip(SEGMENTS, segments, strict=True):
        choices = _segment_choices(text, own, sources)
        if choices is None or (segment == "mid" and choices["op"] == "none"):
            return None
        result |= {f"{name}/{segment}/{key}": value for key, value in choices.items()}
    return result


@lru_cache(maxsize=4096)
def _parsed(text: str) -> FFNGraph:
    return FFNGraph.parse(text)


def _earlier(pre: str) -> dict[str, str]:
    # Where `pre` is nothing or an activation of x, it is among x plain and activated already.
    return {"x": "x"} if pre in ("x", *(f"{unary}(x)" for unary in UNARY)) else {"x": "x", "pre": pre}


def _suggest_segment(trial: Trial, name: str, first: str, own: str, earlier: dict[str, str]) -> str:
    """The formula of one segment whose own value is `own`; `first` is the operation of the base graph.

    A parameter's name says on what its choices depend, since the choices of one name are always the same.
    """
    operations = (first, *(op for op in (*UNARY, *BINARY) if op != first))
    op = trial.suggest_categorical(f"{name}/op", operations)
    if op == "none":
        return own
    if op in UNARY:
        return f"{op}({own})"
    left = trial.suggest_categorical(f"{name}/left", ACTIVATIONS)
    sources = ("own", *earlier)
    source = "own"
    if len(sources) > 1:
        source = trial.suggest_categorical(f"{name}/right/{'-'.join(sources)}", sources)
    if source == "own":
        different = tuple(activation for activation in ACTIVATIONS if activation != left)
        right = _activate(trial.suggest_categorical(f"{name}/right/own-not-{left}", different), own)
    elif _is_activated(earlier[source]):
        right = earlier[source]
    else:
        right = _activate(trial.suggest_categorical(f"{name}/right/{source}", ACTIVATIONS), earlier[source])
    outer = trial.suggest_categorical(f"{name}/outer", ACTIVATIONS)
    return _activate(outer, f"{op}({_activate(left, own)},{right})")


def _segment_choices(text: str, own: str, earlier: dict[str, str]) -> dict[str, str] | None:
    """The inverse of `_suggest_segment`, with keys that lack the segment's name."""
    if text == own:
        return {"op": "none"}
    op, outer, inside = text.partition("(")[0], PLAIN, text
    if op in UNARY:
        inside = text[len(op) + 1 : -1]
        if inside == own:
            return {"op": op}
        outer, op = op, inside.partition("(")[0]
    if op not in BINARY:
        return None
    first, second = _arguments(inside)
    left = _activation_of(first, own)
    if left is None:
        return None
    result = {"op": op, "left": left, "outer": outer}
    sources = ("own", *earlier)
    choice = f"right/{'-'.join(sources)}"
    for source in sources:
        value = earlier.get(source, own)
        activation = _activation_of(second, value)
        if activation is None or (source == "own" and activation == left):
            continue
        if source != "own" and _is_activated(value):
            if activation != PLAIN:
                continue
        else:
            result[f"right/own-not-{left}" if source == "own" else f"right/{source}"] = activation
        return result | ({choice: source} if len(sources) > 1 else {})
    return None


def _activate(activation: str, value: str) -> str:
    return value if activation == PLAIN else f"{activation}({value})"


def _activation_of(text: str, value: str) -> str | None:
    return next((activation for activation in ACTIVATIONS if _activate(activation, value) == text), None)


def _is_activated(text: str) -> bool:
    return text.partition("(")[0] in UNARY


def _arguments(text: str) -> tuple[str, str]:
    """The two arguments of a formula that is a binary operation."""
    depth = 0
    begin = text.index("(") + 1
    for place in range(begin, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if text[place] == "," and not depth:
            return text[begin:place], text[place + 1 : -1]
    raise ValueError(f"{text} has one argument")
