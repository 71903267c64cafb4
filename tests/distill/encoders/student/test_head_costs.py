"""Counts of models with every kind of head, against real ones: ours and the library's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig

from distill.tasks.types import TASK_TYPES
from distill.training.teacher import set_head
from search_spaces import Architecture, cost
from supernet.build import base_of_teacher, build
from tests.supernet.test_build import drawn
from tests.tiny import BASE, SIZES, architectures

TOKENS = 7
CLASSES = 4


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def outputs(kind: str) -> int:
    """The outputs that a configuration has for a task of four classes."""
    config = BertConfig(**SIZES)
    set_head(config, [str(number) for number in range(CLASSES)], kind)
    return int(config.num_labels)


def products(model: Any) -> int:
    """MACs of the linear maps for one sequence, counted while the model runs."""
    total = 0

    def count(module: Any, given: tuple[torch.Tensor, ...], result: torch.Tensor) -> None:
        nonlocal total
        total += given[0].numel() * module.out_features

    hooks = [part.register_forward_hook(count) for part in model.modules() if isinstance(part, nn.Linear)]
    with torch.no_grad():
        model.eval()(input_ids=torch.ones(1, TOKENS, dtype=torch.int64))
    for hook in hooks:
        hook.remove()
    return total


def attention(architecture: Architecture) -> int:
    return architecture.base.depth * 2 * TOKENS**2 * architecture.base.width


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_parameters(kind: str) -> None:
    for architecture in drawn(40):
        with torch.device("meta"):
            model = build(architecture, TASK_TYPES[kind], outputs(kind))
        assert cost.params(architecture, CLASSES, TASK_TYPES[kind].head) == size(model), architecture
        assert cost.params_encoder(architecture) == size(model.base_model.embeddings) + size(model.base_model.encoder)


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_macs(kind: str) -> None:
    for embedding in (None, 5):
        base = replace(BASE, embedding=embedding)
        for architecture in architectures(3, base):
            counted = products(build(architecture, TASK_TYPES[kind], outputs(kind)))
            assert cost.macs(architecture, TOKENS, CLASSES, TASK_TYPES[kind].head) == counted + attention(architecture)


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_the_librarys_models(kind: str) -> None:
    config = BertConfig(**SIZES)
    set_head(config, [str(number) for number in range(CLASSES)], kind)
    model, head = TASK_TYPES[kind].model.from_config(config), TASK_TYPES[kind].head
    base, graph = base_of_teacher(config)
    architecture = Architecture.uniform(base, graph=graph)
    assert cost.params(architecture, CLASSES, head) == cost.params_active(architecture, CLASSES, head) == size(model)
    assert cost.macs(architecture, TOKENS, CLASSES, head) == products(model) + attention(architecture)


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_experts_in_the_head(kind: str) -> None:
    """Those of sentences have them, the others none."""
    architecture = Architecture.uniform(BASE, head_experts=3)
    model = build(architecture, TASK_TYPES[kind], outputs(kind))
    assert cost.params(architecture, CLASSES, TASK_TYPES[kind].head) == size(model)
    idle = 0
    if kind in ("classification", "multi_label_classification", "regression"):
        idle = sum(p[1:].numel() for name, p in model.classifier.named_parameters() if "router" not in name)
        assert idle > 0
    head = TASK_TYPES[kind].head
    assert cost.params_active(architecture, CLASSES, head) == size(model) - idle
    more = cost.macs(architecture, TOKENS, CLASSES, head) - cost.macs(Architecture.uniform(BASE), TOKENS, CLASSES, head)
    assert more == (BASE.width * (BASE.width + 3) if idle else 0)
