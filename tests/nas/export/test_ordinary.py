"""Students as ordinary checkpoints of their family: equal logits, or a reason."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    RobertaConfig,
)

from distill.tasks.types import TASK_TYPES
from nas.export.checkpoint import ExportError
from nas.export.ordinary import ordinary_architecture, ordinary_form, reason_against
from search_spaces import FFN, Architecture, Attention, Base, Embedding, Experts, FFNGraph, Layer, cost
from supernet.build import build
from supernet.pruning import prune
from tests.supernet.test_pruning import KEPT
from tests.tiny import BASE, batch, bert, inputs, shaken

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
NO_FFN = FFN(stack=0)
# What the layers of students have: heads and FFNs. A head has 6 channels of 24, and its maps 4 * 6 * 24 + 3 * 6
# parameters; a channel of an FFN 2 * 24 + 1; a missing FFN also 3 * 24, its bias and LayerNorm.
HEAD, CHANNEL, REST = 4 * 6 * 24 + 3 * 6, 2 * 24 + 1, 3 * 24
SHAPES: dict[str, tuple[list[tuple[int, FFN]], dict[str, int]]] = {
    "fewer heads": ([(4, FFN()), (2, FFN()), (1, FFN())], {"heads": 5 * HEAD, "channels": 0}),
    "nowhere all heads": ([(3, FFN()), (2, FFN()), (1, FFN())], {"heads": 6 * HEAD, "channels": 0}),
    "heads and channels": ([(4, FFN()), (2, FFN(expansion=HALF))] * 2, {"heads": 4 * HEAD, "channels": 48 * CHANNEL}),
    "no heads": ([(0, FFN()), (4, FFN()), (0, FFN())], {"heads": 8 * HEAD, "channels": 0}),
    "no FFN": ([(4, NO_FFN), (4, FFN(expansion=HALF))], {"heads": 0, "channels": 24 * CHANNEL + REST}),
    "no FFN and fewer heads": ([(4, FFN()), (1, NO_FFN)], {"heads": 3 * HEAD, "channels": 48 * CHANNEL + REST}),
    "no FFN anywhere": ([(4, NO_FFN)] * 2, {"heads": 0, "channels": 2 * (CHANNEL + REST)}),
    "first left out": ([(0, NO_FFN), (4, FFN()), (4, FFN())], {"heads": 0, "channels": 0}),
    "others left out": ([(4, FFN()), (0, NO_FFN), (2, FFN()), (0, NO_FFN)], {"heads": 2 * HEAD, "channels": 0}),
}
AUTO = {
    "classification": AutoModelForSequenceClassification,
    "regression": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
    "question_answering": AutoModelForQuestionAnswering,
    "masked_lm": AutoModelForMaskedLM,
}


def student(*layers: FFN, base: Base = BASE, **experts: int) -> Any:
    return shaken(build(Architecture.of_ffns(base, layers, **experts), num_labels=3)).eval()


def of_shape(layers: list[tuple[int, FFN]], form: str, epsilon: float = 1e-12) -> Any:
    """A student of this family with these heads and FFNs."""
    base = replace(BASE, depth=len(layers), positions=22)
    template = RobertaConfig(layer_norm_eps=epsilon, pad_token_id=0) if form == "roberta" else None
    architecture = Architecture(base, tuple(Layer(Attention(heads), ffn) for heads, ffn in layers))
    return architecture, shaken(build(architecture, num_labels=3, template=template)).eval()


def graph(activation: str) -> FFNGraph:
    return FFNGraph.parse(f"project({activation}(expand(x)))")


def widths(activation: str = "gelu") -> list[FFN]:
    """Layers of 12, 48 and 24 channels."""
    return [FFN(graph(activation), expansion=expansion) for expansion in (QUARTER, Fraction(1), HALF)]


@pytest.mark.parametrize("head", ["classification", "masked_lm"])
@pytest.mark.parametrize("form", ["bert", "roberta"])
def test_a_word_embedding_of_lower_rank_is_multiplied_out(form: str, head: str) -> None:
    base = replace(BASE, positions=22)
    template = RobertaConfig(layer_norm_eps=1e-12, pad_token_id=0) if form == "roberta" else None
    architecture = replace(Architecture.uniform(base), embedding=Embedding(5))
    model = shaken(build(architecture, TASK_TYPES[head], 3, template)).eval()
    result = ordinary_form(model, form)
    check(result.model, model)
    of_head = TASK_TYPES[head].head
    ordinary = ordinary_architecture(architecture, result.model.config)
    more = cost.params(ordinary, 3, of_head) - cost.params(architecture, 3, of_head)
    assert result.added == result.padding["words"] == more == 24 * BASE.vocabulary - 5 * (24 + BASE.vocabulary)
    assert f"its word embedding has the full rank, so {more:,} parameters" in str(result)
    assert str(result).endswith(f"all others: {more:,} multiply out the word embedding")


@torch.no_grad()
def check(model: Any, expected: Any) -> None:
    for rows, tokens in ((1, 1), (4, 9), (3, 20)):
        features = inputs(batch(rows, tokens, seed=tokens))
        for name, tensor in expected(**features).items():
            torch.testing.assert_close(model(**features)[name], tensor, rtol=1e-5, atol=1e-5)


PRUNED = tuple(Layer(Attention(heads), FFN(stack=stack)) for heads, stack in ((2, 1), (0, 0), (0, 1), (1, 0)))


@pytest.mark.parametrize(
    "layers", [tuple(Layer(Attention(4), ffn) for ffn in widths()), PRUNED], ids=["widths", "pruned"]
)
@pytest.mark.parametrize("head", AUTO)
def test_every_head_loads_without_trust(head: str, layers: tuple[Layer, ...], tmp_path: Path) -> None:
    labels = {"regression": 1, "question_answering": 2}.get(head, 3)
    given = shaken(build(Architecture(replace(BASE, depth=len(layers)), layers), TASK_TYPES[head], labels)).eval()
    ordinary_form(given, "bert").model.save_pretrained(tmp_path)
    loaded, loading_info = AUTO[head].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading_info.values()), loading_info
    assert type(loaded).__name__.startswith("BertFor")
    assert not list(tmp_path.glob("*.py")) and "ffn" not in loaded.config.to_dict()
    check(loaded.eval(), given)


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "swish", "tanh", "sigmoid", "leaky_relu"])
def test_every_activation(activation: str, gelu: str) -> None:
    given = student(*widths(activation), base=replace(BASE, gelu=gelu))
    check(ordinary_form(given, "bert").model, given)


@pytest.mark.parametrize("form", ["bert", "roberta"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(shape: str, form: str) -> None:
    """Missing heads, FFNs and layers: equal logits, and what was added."""
    layers, padding = SHAPES[shape]
    architecture, given = of_shape(layers, form)
    converted = ordinary_form(given, form)
    check(converted.model, given)
    assert converted.padding == padding
    assert converted.added == params(converted.model) - params(given)
    assert converted.model.config.num_hidden_layers == sum(layer != (0, NO_FFN) for layer in layers)
    # The closed form of its costs knows its parameters.
    whole = ordinary_architecture(architecture, converted.model.config)
    assert cost.params(whole) - cost.params(architecture) == converted.added


def params(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_what_supernet_prune_makes() -> None:
    """Heads from the middle of a trained attention: those that are left keep their query, key and value."""
    pruned = prune(bert(num_hidden_layers=3), KEPT)
    check(ordinary_form(pruned, "bert").model, pruned)


def test_epsilon_of_layers_without_an_ffn() -> None:
    """Normalizing twice is the same but for epsilon; a difference beyond the tolerance is found."""
    _, given = of_shape([(4, NO_FFN), (4, FFN())], "roberta", epsilon=1e-5)
    check(ordinary_form(given, "roberta").model, given)
    _, given = of_shape([(4, NO_FFN), (4, FFN())], "roberta", epsilon=0.1)
    with pytest.raises(ExportError, match=r"an FFN are normalized twice, with the epsilon 0\.1; export it"):
        ordinary_form(given, "roberta")


def test_what_it_says() -> None:
    converted = ordinary_form(of_shape(SHAPES["heads and channels"][0], "bert")[1], "bert")
    # 2,376 for 4 heads, 2,352 for 48 channels, and the student's own are counted by hand in SHAPES.
    own = params(converted.model) - 4 * HEAD - 48 * CHANNEL
    assert str(converted) == (
        f"all layers of a bert model have the same sizes, so 4,728 parameters ({4728 / own:.1%} more) are padding, "
        "which is computed like all others: 2,376 give every attention 4 heads and 2,352 give every FFN 48 channels"
    )
    same = ordinary_form(student(*[FFN(expansion=HALF)] * 3), "bert")
    assert same.added == 0
    assert same.model.config.intermediate_size == 24
    assert str(same) == "the same parameters and operations as the student's"
    widened = str(ordinary_form(student(*widths()), "bert"))
    assert widened.endswith(": 2,940 give every FFN 48 channels")


def test_labels_and_settings_are_kept() -> None:
    given = student(*widths())
    given.config.id2label = {0: "low", 1: "middle", 2: "high"}
    given.config.layer_norm_eps = 1e-5
    config = ordinary_form(given, "bert").model.config
    assert config.id2label == given.config.id2label
    assert (config.layer_norm_eps, config.num_labels) == (1e-5, 3)


@pytest.mark.parametrize(
    ("layers", "changes", "reason"),
    [
        ([FFN(stack=2)], {}, "layer 1 has 2 blocks, and every layer of a bert model has one"),
        ([FFN(), NO_FFN, FFN(stack=2)], {}, "layer 3 has 2 blocks"),
        ([FFN(expansion=QUARTER, experts=Experts(2))], {}, "layer 1 has experts"),
        ([FFN(FFNGraph.parse("tanh(project(gelu(expand(x))))"))], {}, "layer 1 computes tanh"),
        ([FFN(FFNGraph.parse("project(mul(gelu(expand(x)),gate(x)))"))], {}, "layer 1 computes"),
        ([FFN(FFNGraph.parse("project(gelu(expand(tanh(x))))"))], {}, "layer 1 computes"),
        ([FFN(), FFN(graph("relu"))], {}, "different activations (gelu and relu)"),
        ([FFN(graph("elu"))] * 3, {}, "no hidden_act for elu"),
        ([FFN()], {"embedding": 7}, "its word embedding is factorized"),
        ([FFN()], {"attention_experts": 2}, "its attention has experts"),
        ([FFN()], {"head_experts": 2}, "its head has experts"),
    ],
)
def test_what_bert_cannot_express(layers: list[FFN], changes: dict[str, int], reason: str) -> None:
    layers = [*layers, *[layers[0]] * (BASE.depth - len(layers))]
    of_base = {name: value for name, value in changes.items() if name == "embedding"}
    experts = {name: value for name, value in changes.items() if name not in of_base}
    given = student(*layers, base=replace(BASE, **of_base), **experts)  # type: ignore[arg-type]
    assert reason in reason_against(given.config)
    with pytest.raises(ExportError, match=r"this student cannot be an ordinary checkpoint: .*; export it without --as"):
        ordinary_form(given, "bert")


def test_no_layer_is_left() -> None:
    _, given = of_shape([(0, NO_FFN)] * 2, "bert")
    with pytest.raises(ExportError, match="all of its layers are left out"):
        ordinary_form(given, "bert")
