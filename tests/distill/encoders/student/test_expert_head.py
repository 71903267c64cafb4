"""MicroBERT's prediction layer: experts in a classifier's head."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from distill.objectives.outputs import LOGITS, ROUTINGS, run
from distill.training.evaluation import expert_load
from search_spaces import Architecture
from supernet.build import build
from tests.tiny import BASE, batch, inputs, shaken

EXPERTS = 3
ARCHITECTURE = Architecture.uniform(BASE, head_experts=EXPERTS)


def make(seed: int = 0, labels: int = 5, architecture: Architecture = ARCHITECTURE) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(architecture, num_labels=labels)
    return shaken(model, seed, scale=1.0).eval()


@torch.no_grad()
def expected(model: Any, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits sentence by sentence from equations 4 and 5, and each sentence's expert."""
    head = model.classifier
    pooled = model.bert(**inputs(features)).pooler_output
    rows, chosen = [], []
    for x in pooled:
        probabilities = torch.softmax(head.router.weight @ x, dim=0)
        e = int(probabilities.argmax())
        inner = torch.softmax(head.inner.weight[e] @ x + head.inner.bias[e], dim=0)
        scale = {"relative": EXPERTS, "probability": 1}[model.config.gate_scale]
        rows.append(probabilities[e] * scale * (head.outer.weight[e] @ inner + head.outer.bias[e]))
        chosen.append(e)
    return torch.stack(rows), torch.tensor(chosen)


@torch.no_grad()
@pytest.mark.parametrize("gate_scale", ["relative", "probability"])
def test_equations_4_and_5(gate_scale: str, accelerator: Accelerator) -> None:
    architecture = Architecture.uniform(replace(BASE, gate_scale=gate_scale), head_experts=EXPERTS)
    model, features = make(architecture=architecture), batch(12, labels=5)
    logits, chosen = expected(model, features)
    outputs = run(model, features, frozenset({LOGITS, ROUTINGS}))
    torch.testing.assert_close(outputs.logits, logits)
    ((probabilities, first),) = outputs.routings
    assert first.tolist() == chosen.tolist() and probabilities.shape == (12, EXPERTS)
    assert len(set(first.tolist())) > 1
    for row in range(12):
        one = {name: tensor[row : row + 1] for name, tensor in features.items()}
        torch.testing.assert_close(model(**inputs(one)).logits[0], logits[row])
    (load,) = expert_load(model, [features], accelerator=accelerator)
    shares = torch.bincount(chosen, minlength=EXPERTS) / 12
    assert (load.layer, load.part) == (-1, "head") and load.shares == pytest.approx(shares.tolist())
    assert str(load).startswith("head: ")


def test_every_part_learns() -> None:
    model, features = make(), batch(12, labels=5)
    torch.nn.functional.cross_entropy(model(**inputs(features)).logits, features["labels"]).backward()
    used = expected(model, features)[1].unique()
    for name, parameter in model.classifier.named_parameters():
        moved = parameter.grad.flatten(1).abs().sum(dim=1) > 0
        assert moved.tolist() == ([True] * EXPERTS if "router" in name else [e in used for e in range(EXPERTS)]), name
