"""The published strings and architectures, and the numbers published with them."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from search_spaces import PUBLISHED, Architecture, Experts, FFNGraph, GraphError, cost
from search_spaces.published import RELEASED, parse_released
from tests.search_spaces.strategies import broken_rules, graphs

MILLIONS = {
    "base": "15.339",
    "stage1": "15.400",
    "stage2": "15.400",
    "efficientbert": "15.738",
    "efficientbert-tiny": "9.375",
    "efficientbert++": "15.972",
    "efficientbert-tinybert6": "70.117",
}
DEPLOYABLE = {"base": "15.217", "stage1": "15.279", "efficientbert": "15.616", "efficientbert-tiny": "9.229"}


@pytest.mark.parametrize("name", MILLIONS)
def test_parameters(name: str) -> None:
    assert f"{cost.params_published(PUBLISHED[name]) / 1e6:.3f}" == MILLIONS[name]
    if name in DEPLOYABLE:
        assert f"{cost.params(PUBLISHED[name]) / 1e6:.3f}" == DEPLOYABLE[name]


def variant(name: str, experts: Experts | None = None, **changes: int) -> Architecture:
    """A published architecture of uniform layers, on a base with these changes."""
    genes = PUBLISHED[name].ffns[0]
    base = replace(PUBLISHED[name].base, **changes)
    return Architecture.of_ffns(base, (replace(genes, experts=experts or genes.experts),) * base.depth)


# What the papers compare with, or mention, beside the published architectures.
ARCHITECTURES = PUBLISHED | {
    "bert-4l": variant("bert-base", depth=4),
    "bert-6l": variant("bert-base", depth=6),
    "minilm-12l-192h": variant("minilm-4l-192h", depth=12),
    "minimoe-12l-192h, 2 experts": variant("minilm-4l-192h", Experts(2, Fraction(1), "token_gate"), depth=12),
    "moebert-large": variant("moebert", Experts(4, Fraction(1, 2)), depth=24, width=1024, heads=16, inner=4096),
}


def embeddings(architecture: Architecture) -> int:
    base = architecture.base
    return (base.vocabulary + base.positions + base.token_types + 2) * base.width


QUANTITIES: dict[str, Callable[[Architecture], float]] = {
    "M with pooler": lambda one: cost.params(one, num_labels=0) / 1e6,
    "M of the encoder": lambda one: cost.params_encoder(one) / 1e6,
    "M effective": lambda one: cost.params_effective(one) / 1e6,
    "M with relation maps": lambda one: cost.params_minimoe(one) / 1e6,
    "M with the transform": lambda one: cost.params_published(one) / 1e6,
    "M of embeddings": lambda one: embeddings(one) / 1e6,
    "M of layers": lambda one: (cost.params_encoder(one) - embeddings(one)) / 1e6,
    "M of layers and relation maps": lambda one: (cost.params_minimoe(one) - embeddings(one)) / 1e6,
    "G linear MACs": lambda one: cost.macs_linear(one) / 1e9,
    "G FLOPs": lambda one: cost.flops(one) / 1e9,
    "G FLOPs of linear maps and products": lambda one: (cost.flops(one) - 256 * one.base.width**2) / 1e9,
    "times faster": cost.speedup,
}
FIGURES: list[tuple[str, str, dict[str, str]]] = [
    ("EfficientBERT, table 2", "M of the encoder", {"bert-base": "108.9"}),
    ("EfficientBERT, table 2", "M with the transform", {"bert-4l": "52.8", "bert-6l": "67.0", "tinybert-4": "14.5"}),
    ("EfficientBERT, table 4", "M with the transform", {"minilm-4l-384h": "19.3", "minilm-6l-384h": "22.9"}),
    ("MoEBERT, section 1 and caption of table 1", "M with pooler", {"bert-base": "1.1E+2"}),
    ("MoEBERT, caption of table 2", "M with pooler", {"bert-base": "109"}),
    ("MoEBERT, tables 1 and 2", "M of the encoder", {"bert-6l": "66"}),
    ("MoEBERT, section 4.3", "M effective", {"moebert": "66"}),
    ("MoEBERT, section 1", "times faster", {"moebert": "2.00", "bert-base": "1.00"}),
    (
        "MiniMoE, tables 3 and 9",
        "G linear MACs",
        {
            "bert-base": "10.9",
            **{f"{name}-6l-384h": "1.36" for name in ("minilm", "minimoe")},
            **{name: "0.91" for name in ("minilm-4l-384h", "minimoe-4l-384h", "minimoe-4l-384h-hash")},
            **{f"{name}-3l-384h": "0.68" for name in ("minilm", "minimoe")},
            **{f"{name}-4l-192h": "0.23" for name in ("minilm", "minimoe")},
        },
    ),
    (
        "MiniMoE, table 10",
        "G linear MACs",
        {
            "bert-large": "38.7",
            **{f"{name}-4l-96h": "0.06" for name in ("minilm", "minimoe")},
            **{f"{name}-3l-96h": "0.04" for name in ("minilm", "minimoe")},
        },
    ),
    ("MiniMoE, table 5", "M with pooler", {"bert-base": "109.5"}),
    ("MiniMoE, table 5", "M of the encoder", {"minilm-3l-384h": "17.2"}),
    ("MiniMoE, table 5", "M with relation maps", {"minimoe-3l-384h": "28.3"}),
    ("MiniMoE, table 12", "M of layers", {"minilm-3l-384h": "5.3"}),
    ("MiniMoE, table 12", "M of layers and relation maps", {"minimoe-3l-384h": "16.4"}),
    # Appendix B calls them 4L.
    ("MiniMoE, appendix B", "M of embeddings", {"minilm-12l-192h": "6.0", "minimoe-12l-192h, 2 experts": "6.0"}),
    ("MiniMoE, appendix B", "M with pooler", {"minilm-12l-192h": "11.3", "minimoe-12l-192h, 2 experts": "14.9"}),
    (
        "MiniMoE, appendix B",
        "M of layers and relation maps",
        {"minilm-12l-192h": "5.4", "minimoe-12l-192h, 2 experts": "9.0"},
    ),
    ("MicroBERT, section 1", "M with pooler", {"bert-base": "109", "bert-large": "3.4E+2"}),
    ("MicroBERT, table 1", "M with pooler", {"bert-base": "109"}),
    ("MicroBERT, table 1", "M of the encoder", {"bert-4l": "52.2"}),
    ("MicroBERT, table 1", "M with the transform", {"tinybert-4": "14.5", "microbert": "14.5"}),
    ("MicroBERT, table 1", "G FLOPs", {"bert-base": "22.5", "bert-4l": "7.6"}),
    ("MicroBERT, table 1", "G FLOPs of linear maps and products", {"tinybert-4": "1.2", "microbert": "1.2"}),
]


@pytest.mark.parametrize(
    ("quantity", "name", "printed"),
    [
        pytest.param(quantity, name, printed, id=f"{place}: {name}, {printed} {quantity}")
        for place, quantity, rows in FIGURES
        for name, printed in rows.items()
    ],
)
def test_figures_of_the_papers(quantity: str, name: str, printed: str) -> None:
    """Every printed figure that follows from dimensions, to half a unit of its last digit."""
    unit = 10.0 ** int(Decimal(printed).as_tuple().exponent)
    assert QUANTITIES[quantity](ARCHITECTURES[name]) == pytest.approx(float(printed), rel=0, abs=unit / 2)


@pytest.mark.parametrize(("name", "dense"), [("moebert", "bert-base"), ("moebert-large", "bert-large")])
def test_moebert_halves_the_encoder(name: str, dense: str) -> None:
    """Effective parameters "reduced by half", and "a x2 speedup" (sections 1, 3.1 and 4.6)."""
    small, large = ARCHITECTURES[name], PUBLISHED[dense]
    layers = cost.params_effective(small) - embeddings(small), cost.params_encoder(large) - embeddings(large)
    assert layers[0] / layers[1] == pytest.approx(0.5, abs=0.001)
    assert cost.speedup(small) == 2
    assert cost.params_encoder(small) > 0.99 * cost.params_encoder(large)


def released_string(graph: FFNGraph, stack: int, divisor: int) -> str:
    """The spelling of a graph without a gate, of `stack` blocks at expansion 1 / `divisor`."""
    weights = {"expand": "wb1", "project": "wb2"}

    def spell(op: str, inputs: tuple[str, ...]) -> str:
        if op in weights:
            return f"linear{stack}_{divisor}({inputs[0]},{weights[op]})"
        return f"{op}({','.join(inputs)})" if inputs else op

    return graph.fold(spell)[-1]


@pytest.mark.parametrize("text", sorted({text for texts in RELEASED.values() for text in texts}))
def test_released_strings_round_trip(text: str) -> None:
    graph, stack, expansion = parse_released(text)
    assert released_string(graph, stack, expansion.denominator) == text
    assert not broken_rules(graph)


@given(graphs(), st.integers(1, 16), st.integers(1, 9999))
def test_any_graph_without_a_gate_has_a_released_spelling(graph: FFNGraph, stack: int, divisor: int) -> None:
    assume(not graph.gated)
    text = released_string(graph, stack, divisor)
    assert parse_released(text) == (graph, stack, Fraction(1, divisor))


def test_what_a_released_string_says() -> None:
    graph, stack, expansion = parse_released("linear2_2(gelu(linear2_2(max(x,tanh(x)),wb1)),wb2)")
    assert str(graph) == "project(gelu(expand(max(x,tanh(x)))))"
    assert (stack, expansion) == (2, Fraction(1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linear2_2(gelu(linear2_3(x,wb1)),wb2)", "have one name, found linear2_2, linear2_3"),
        ("gelu(x)", "have one name, found none"),
        ("linear2_2(gelu(linear2_2(x,wb2)),wb1)", "'project' needs a value"),
        ("linear2_2(gelu(linear2_2(x,wb1)),wb1)", "exactly one 'expand'"),
        ("linear2_2(wb2,linear2_2(x,wb1))", "takes a value and wb1 or wb2"),
        ("linear2_2(x)", "takes a value and wb1 or wb2"),
        ("linear0_2(x,wb1)", "is not a linear map"),
        ("add(x,wb1)", "'add' is not a linear map"),
        ("linear1_1(gelu(expand(x)),wb2)", "'expand' is not a linear map"),
        ("linear1_1(gleu(linear1_1(x,wb1)),wb2)", "did you mean 'gelu'"),
        ("wb1", "found none"),
        ("linear1_1(" * 5000, "more than 256 terms"),
    ],
)
def test_faulty_released_strings(text: str, message: str) -> None:
    with pytest.raises(GraphError) as error:
        parse_released(text)
    assert message in str(error.value)


def test_deep_one_repeats_every_layer() -> None:
    deep, plain = PUBLISHED["efficientbert++"].ffns, PUBLISHED["efficientbert"].ffns
    assert deep[::2] == deep[1::2] == plain
