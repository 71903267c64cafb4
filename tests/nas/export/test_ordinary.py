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
)

from distill.tasks.types import TASK_TYPES
from nas.export.checkpoint import ExportError
from nas.export.ordinary import ordinary_form, reason_against
from search_spaces import FFN, Architecture, Base, Experts, FFNGraph
from supernet.build import build
from tests.tiny import BASE, batch, inputs, shaken

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
AUTO = {
    "classification": AutoModelForSequenceClassification,
    "regression": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
    "question_answering": AutoModelForQuestionAnswering,
    "masked_lm": AutoModelForMaskedLM,
}


def student(*layers: FFN, base: Base = BASE, head: str = "classification", **experts: int) -> Any:
    labels = {"regression": 1, "question_answering": 2}.get(head, 3)
    return shaken(build(Architecture.of_ffns(base, layers, **experts), TASK_TYPES[head], labels)).eval()


def graph(activation: str) -> FFNGraph:
    return FFNGraph.parse(f"project({activation}(expand(x)))")


def widths(activation: str = "gelu") -> list[FFN]:
    """Layers of 12, 48 and 24 channels."""
    return [FFN(graph(activation), expansion=expansion) for expansion in (QUARTER, Fraction(1), HALF)]


@torch.no_grad()
def check(model: Any, expected: Any) -> None:
    for rows, tokens in ((1, 1), (4, 9), (3, 20)):
        features = inputs(batch(rows, tokens, seed=tokens))
        for name, tensor in expected(**features).items():
            torch.testing.assert_close(model(**features)[name], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head", AUTO)
def test_every_head_loads_without_trust(head: str, tmp_path: Path) -> None:
    given = student(*widths(), head=head)
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


def test_what_different_widths_cost() -> None:
    converted = ordinary_form(student(*widths()), "bert")
    # A channel has a row and a bias in one map and a column in the other; 36 and 24 channels are added.
    assert converted.added == (36 + 24) * (2 * BASE.width + 1)
    assert f"{converted.added:,} parameters" in str(converted) and "to 48 channels" in str(converted)
    same = ordinary_form(student(*[FFN(expansion=HALF)] * 3), "bert")
    assert same.added == 0
    assert same.model.config.intermediate_size == 24
    assert str(same) == "the same parameters and operations as the student's"


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
        ([FFN(), FFN(stack=0)], {}, "layer 2 has no FFN"),
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
