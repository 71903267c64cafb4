"""A layer with neither heads nor an FFN: its output is its input, and nothing of it is stored."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers
from search_spaces import FFN, Architecture, Attention, Experts, Layer, cost
from search_spaces.cost import layer_params
from supernet.build import base_of_teacher, build
from tests.distill.encoders.student.test_head_costs import TOKENS, products
from tests.renamed import of_every_kind
from tests.tiny import batch, bert, inputs, shaken

TEACHERS = of_every_kind(bert(num_hidden_layers=4))
HALF = Fraction(1, 2)


def student(family: str, routed: bool) -> tuple[Any, Architecture]:
    """Of four layers the second and the last are left out; with experts, the tokens are passed to all layers."""
    config = TEACHERS[family].config
    base, graph = base_of_teacher(config)
    ffn = FFN(graph, 2, HALF, Experts(2, HALF) if routed else Experts())
    none = Layer(Attention(0), FFN(stack=0))
    architecture = Architecture(base, (Layer(Attention(3), ffn), none, Layer(Attention(0), ffn), none))
    torch.manual_seed(0)
    return shaken(build(architecture, num_labels=3, template=config)).eval(), architecture


KINDS = [
    (name, routed) for name in TEACHERS for routed in (False, True) if not routed or family_of(TEACHERS[name]).experts
]


@pytest.mark.parametrize(("family", "routed"), KINDS)
def test_its_output_is_its_input(family: str, routed: bool) -> None:
    model, architecture = student(family, routed)
    # The last states are normalized once more, where LayerNorms come first.
    once = not architecture.base.pre_norm
    for training in (True, False):
        states = model.train(training)(**inputs(batch()), output_hidden_states=True).hidden_states
        assert [torch.equal(*pair) for pair in pairwise(states)] == [False, True, False, once]
    for number, (layer, own) in enumerate(zip(encoder_layers(model), architecture.layers, strict=True)):
        size = sum(parameter.numel() for parameter in layer.parameters())
        missing = 0 if number or architecture.base.first_norm else architecture.base.norm_size
        assert size == layer_params(architecture.base, own) - missing and (size == 0) == own.left_out


@pytest.mark.parametrize("family", TEACHERS)
def test_it_costs_nothing(family: str) -> None:
    """Of the real model's parameters and products."""
    model, architecture = student(family, False)
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.params(architecture, 3)
    width = 3 * architecture.base.width // architecture.base.heads
    assert (
        cost.macs(architecture, TOKENS, 3)
        == products(model) + 2 * TOKENS * (TOKENS + architecture.base.relative_positions) * width
    )


@pytest.mark.parametrize(("family", "routed"), KINDS)
@torch.no_grad()
def test_it_is_saved_and_loaded(family: str, routed: bool, tmp_path: Path) -> None:
    model, _ = student(family, routed)
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, trust_remote_code=True, output_loading_info=True
    )
    assert not any(info.values())
    assert torch.equal(loaded.eval()(**inputs(batch())).logits, model(**inputs(batch())).logits)
