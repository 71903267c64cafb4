"""The grammar of the graphs in a search space: a graph from a trial's choices, and the choices for a given graph.

A graph is

    post(project(mid(expand(pre(x)))))

where `pre`, `mid` and `post` are segments. A segment is the identity (except `mid`), an activation of the segment's
input, or a binary operation of the segment's input with itself or with an earlier value of the layer. An activation may
be applied to either argument and to the result of a binary operation. So `x` and intermediate results can be reused,
while graphs that break the rules of EfficientBERT (section 3.2: no activation of an activation, no linear map of a
linear map, no binary operation on two equal arguments) cannot be expressed. With `gated`, `mid` may also use
`gate(pre)`, a second linear map: GeGLU is `mul(gelu(expand(x)),gate(x))`.

With `max_height`, the arguments of a binary operation may be binary operations themselves; `search_spaces.trees` is the
grammar of these graphs.

In this module values are represented by their formulas; `FFNGraph.parse` converts the final one to a graph.
"""

from collections.abc import Sequence

from search_spaces.graph import FFNGraph
from search_spaces.operations import BINARY, UNARY
from search_spaces.spelling import NONE, OWN, GraphTrial, NotSpelledError, Reader, activate, activations, is_activated
from search_spaces.trees import count_trees, suggest_tree


def suggest_graph(
    trial: GraphTrial, name: str, activation: str, gated: bool, max_height: int | None = None
) -> FFNGraph:
    """The graph that a trial's choices define. The names of all parameters start with `name`.

    Taking the first choice of every parameter gives `project(activation(expand(x)))`.
    """
    return FFNGraph.parse(_suggest_formula(trial, name, activation, gated, max_height))


def _suggest_formula(trial: GraphTrial, name: str, activation: str, gated: bool, max_height: int | None) -> str:
    if max_height is not None:
        return suggest_tree(trial, name, activation, gated, max_height)
    pre = _suggest_segment(trial, f"{name}/pre", NONE, "x", {})
    earlier = _earlier_values(pre)
    mid = _suggest_segment(trial, f"{name}/mid", activation, f"expand({pre})", earlier | _gate(pre, gated))
    return _suggest_segment(trial, f"{name}/post", NONE, f"project({mid})", earlier)


def count_graphs(activation: str, gated: bool, max_height: int | None = None) -> int:
    """The number of graphs that `suggest_graph` can return, counted as they are spelled: some of them compute the same
    function.
    """
    if max_height is not None:
        return count_trees(gated, max_height)
    total = 0
    # How many choices there are after `pre` depends only on whether it may be used again, and whether it is activated.
    kinds: dict[tuple[int, bool], list[str]] = {}
    for pre in _segments(NONE, "x", {}):
        kinds.setdefault((len(_earlier_values(pre)), is_activated(pre)), []).append(pre)
    for alike in kinds.values():
        earlier = _earlier_values(alike[0])
        middles = _segments(activation, f"expand({alike[0]})", earlier | _gate(alike[0], gated))
        total += len(alike) * len(middles) * len(_segments(NONE, "project(mid)", earlier))
    return total


def choices_of(graph: FFNGraph, name: str, gated: bool, max_height: int | None = None) -> dict[str, str] | None:
    """The choices for which `suggest_graph` returns this graph; None if the grammar cannot express it."""
    pre, mid = (graph.texts[graph.nodes[graph.find(linear)].inputs[0]] for linear in ("expand", "project"))
    earlier = {"x": "x", "pre": pre, "gate": f"gate({pre})"}
    inputs = {"pre": "x", "mid": f"expand({pre})", "post": f"project({mid})"}
    leaves = {segment: earlier | {OWN: value} for segment, value in inputs.items()}
    reader = Reader(name, {"pre": pre, "mid": mid, "post": str(graph)}, leaves)
    try:
        formula = _suggest_formula(reader, name, next(iter(UNARY)), gated, max_height)
    except NotSpelledError:
        return None
    return reader.made if formula == str(graph) else None


def _earlier_values(pre: str) -> dict[str, str]:
    """The values before `expand`, by their names in choices."""
    # If `pre` is x or an activation of x, it is already available as "x" with an activation.
    return {"x": "x"} if pre in ("x", *(f"{unary}(x)" for unary in UNARY)) else {"x": "x", "pre": pre}


def _gate(pre: str, gated: bool) -> dict[str, str]:
    return {"gate": f"gate({pre})"} if gated else {}


def _suggest_segment(trial: GraphTrial, name: str, first: str, segment_input: str, earlier: dict[str, str]) -> str:
    """The formula of one segment; `first` is its operation in the base graph.

    Samplers require that the same parameter name always has the same choices. Where the choices depend on earlier ones,
    these are therefore part of the name.
    """
    operations = (first, *(op for op in (*UNARY, *BINARY) if op != first))
    op = trial.suggest_categorical(f"{name}/op", operations)
    if op == NONE:
        return segment_input
    if op in UNARY:
        return f"{op}({segment_input})"
    left = trial.suggest_categorical(f"{name}/left", activations())
    sources = (OWN, *earlier)
    source = OWN
    if len(sources) > 1:
        source = trial.suggest_categorical(f"{name}/right/{'-'.join(sources)}", sources)
    if source == OWN:
        different = tuple(activation for activation in activations() if activation != left)
        right = activate(trial.suggest_categorical(f"{name}/right/own-not-{left}", different), segment_input)
    elif is_activated(earlier[source]):
        right = earlier[source]
    else:
        right = activate(trial.suggest_categorical(f"{name}/right/{source}", activations()), earlier[source])
    outer = trial.suggest_categorical(f"{name}/outer", activations())
    return activate(outer, f"{op}({activate(left, segment_input)},{right})")


def _segments(first: str, segment_input: str, earlier: dict[str, str]) -> frozenset[str]:
    """All formulas of `_suggest_segment`."""
    formulas: set[str] = set()
    pending: list[tuple[str, ...]] = [()]
    while pending:
        trial = _FixedTrial(pending.pop())
        formulas.add(_suggest_segment(trial, "", first, segment_input, earlier))
        pending += trial.others
    return frozenset(formulas)


class _FixedTrial:
    """A trial that makes the given choices first and then the first of every further parameter, whose other choices it
    collects in `others`, each after the choices before it.
    """

    def __init__(self, given: tuple[str, ...]) -> None:
        self.given = given
        self.made: tuple[str, ...] = ()
        self.others: list[tuple[str, ...]] = []

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        position = len(self.made)
        if position < len(self.given):
            chosen = self.given[position]
        else:
            chosen, *others = choices
            self.others += [(*self.made, other) for other in others]
        self.made += (chosen,)
        return chosen
