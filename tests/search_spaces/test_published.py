"""The published strings and the numbers published with them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import GELU, PUBLISHED, FFNGraph, GraphError, breaks_rules, cost
from search_spaces.published import RELEASED, parse_released, print_released
from tests.search_spaces.strategies import graphs

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


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters(name: str) -> None:
    assert f"{cost.params_published(PUBLISHED[name]) / 1e6:.3f}" == MILLIONS[name]
    if name in DEPLOYABLE:
        assert f"{cost.params(PUBLISHED[name]) / 1e6:.3f}" == DEPLOYABLE[name]


@pytest.mark.parametrize("text", sorted({text for texts in RELEASED.values() for text in texts}))
def test_released_strings_round_trip(text: str) -> None:
    graph, stack, expansion = parse_released(text)
    assert print_released(graph, stack, expansion) == text
    assert breaks_rules(graph) == []


@given(graphs(), st.integers(1, 16), st.integers(1, 9999))
def test_any_graph_without_a_gate_has_a_released_spelling(graph: FFNGraph, stack: int, divisor: int) -> None:
    genes = (graph, stack, Fraction(1, divisor))
    if graph.gated:
        with pytest.raises(GraphError, match="released strings have no gate"):
            print_released(*genes)
        return
    assert parse_released(print_released(*genes)) == genes


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
        ("linear0_2(x,wb1)", "is no linear map"),
        ("add(x,wb1)", "'add' is no linear map"),
        ("linear1_1(gelu(expand(x)),wb2)", "'expand' is no linear map"),
        ("linear1_1(gleu(linear1_1(x,wb1)),wb2)", "did you mean 'gelu'"),
        ("wb1", "found none"),
        ("linear1_1(" * 5000, "more than 256 terms"),
    ],
)
def test_faulty_released_strings(text: str, message: str) -> None:
    with pytest.raises(GraphError) as error:
        parse_released(text)
    assert message in str(error.value)


def test_only_unit_fractions_have_a_spelling() -> None:
    with pytest.raises(ValueError, match="1/n"):
        print_released(GELU, 1, Fraction(2, 3))


def test_deep_one_repeats_every_layer() -> None:
    deep, plain = PUBLISHED["efficientbert++"].layers, PUBLISHED["efficientbert"].layers
    assert deep[::2] == deep[1::2] == plain
