"""Random values for property tests."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import strategies as st

from search_spaces import (
    BINARY,
    DENSE,
    FFN,
    UNARY,
    Architecture,
    Attention,
    Base,
    Embedding,
    Experts,
    FFNGraph,
    Layer,
    PredictionHead,
    Space,
)
from search_spaces.graph import MAX_TERMS
from search_spaces.operations import LINEAR
from search_spaces.routing import ROUTINGS

BASE = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)


@st.composite
def graphs(draw: st.DrawFn) -> FFNGraph:
    """Any valid graph, gated or not, whether it keeps the rules of style or not, with values reused at random."""

    def grow(values: list[str], needs: str) -> str:
        # `needs` stays part of every new value, so that everything built is used. Values stop growing where two of
        # them, joined and applied once more, would come near the largest formula.
        value = needs
        for _ in range(draw(st.integers(0, 3))):
            op = draw(st.sampled_from([*UNARY, *BINARY]))
            if op in UNARY:
                grown = f"{op}({value})"
            else:
                pair = [value, draw(st.sampled_from([*values, value]))]
                grown = f"{op}({','.join(draw(st.permutations(pair)))})"
            if grown.count("(") + grown.count(",") + 1 > MAX_TERMS // 4:
                break
            value = grown
        return value

    pre = grow(["x"], "x")
    own, values = f"expand({pre})", ["x", pre, f"expand({pre})"]
    if draw(st.booleans()):
        gate = f"gate({draw(st.sampled_from(['x', pre]))})"
        pair = [grow([*values, gate], value) for value in (own, gate)]
        own = f"{draw(st.sampled_from([*BINARY]))}({','.join(draw(st.permutations(pair)))})"
        values += [gate, own]
    mid = grow(values, own)
    return FFNGraph.parse(grow(["x", pre, f"project({mid})"], f"project({mid})"))


@st.composite
def experts(draw: st.DrawFn, inner: int) -> Experts:
    """Any experts that a layer of BASE with this many inner channels can have, one as well as several."""
    count = draw(st.sampled_from([1, 1, 1, 2, 3, 4, 8]))
    if count == 1:
        return DENSE
    # The fewest shared channels with which an expert's part of the others suffices.
    least = next(shared for shared in range(inner + 1) if shared + (BASE.inner - shared) // count >= inner)
    shared = Fraction(draw(st.integers(least, inner)), inner)
    routing, top_k = draw(st.sampled_from(tuple(ROUTINGS))), draw(st.integers(1, min(count, 4)))
    capacities = st.none() | st.fractions(Fraction(1, 4), 4, max_denominator=100)
    return Experts(count, shared, routing, top_k, None if ROUTINGS[routing].by_sentence else draw(capacities))


def attentions() -> st.SearchStrategy[Attention]:
    """Any attention that a layer of BASE can have: with all heads, of which there may be several experts, or fewer."""
    pruned = st.integers(0, BASE.heads).map(Attention)
    return st.sampled_from([1, 1, 2, 3]).map(lambda experts: Attention(BASE.heads, experts)) | pruned


@st.composite
def ffns(draw: st.DrawFn) -> FFN:
    """Any FFN that a layer of BASE can have, also none."""
    expansion = draw(st.fractions(Fraction(1, BASE.inner), 1, max_denominator=BASE.inner))
    genes = FFN(draw(graphs()), draw(st.integers(0, 4)), expansion)
    return replace(genes, experts=draw(experts(genes.inner(BASE)))) if genes.stack else genes


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    """Any valid architecture of three small layers."""
    gate_scale = draw(st.sampled_from(["relative", "relative", "probability"]))
    capacity_per = draw(st.sampled_from(["sentence", "sentence", "batch"]))
    capacity = draw(st.sampled_from([None, None, Fraction(5, 4)]))
    base = replace(BASE, gate_scale=gate_scale, capacity_per=capacity_per, attention_capacity=capacity)
    head = PredictionHead(draw(st.sampled_from([1, 1, 2])))
    embedding = Embedding(draw(st.none() | st.integers(1, BASE.width - 1)))
    return Architecture(base, tuple(Layer(draw(attentions()), draw(ffns())) for _ in range(3)), head, embedding)


def broken_rules(graph: FFNGraph) -> list[str]:
    """The values of the graph that break a rule of EfficientBERT's search space (section 3.2), with the rule."""
    broken = []
    for node, text in zip(graph.nodes, graph.texts, strict=True):
        ops = {graph.nodes[number].op for number in node.inputs}
        if len(set(node.inputs)) < len(node.inputs):
            broken.append(f"{text}: both inputs are equal")
        if node.op in UNARY and ops & UNARY.keys():
            broken.append(f"{text}: an activation on an activation")
        if node.op in LINEAR and ops & LINEAR.keys():
            broken.append(f"{text}: a linear map on a linear map")
    return broken


def small_space(
    low: int, high: int, mismatch: str = "narrow", mutation_rate: float = 0.5, experts: tuple[Experts, ...] = (DENSE,)
) -> Space:
    """Three layers with six dense sizes each; the narrowest one is below the model's width, the widest above."""
    base = replace(BASE, mismatch=mismatch)
    expansions = (Fraction(1), Fraction(1, 2), Fraction(1, 4))
    return Space(base, {"stack": (1, 2), "expansion": expansions, "experts": experts}, low, high, mutation_rate)
