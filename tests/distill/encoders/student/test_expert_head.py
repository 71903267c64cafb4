"""MicroBERT's prediction layer: experts in a classifier's head."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from distill.objectives.outputs import LOGITS, ROUTINGS, run
from distill.training.evaluation import expert_load
from search_spaces import Architecture, cost
from supernet.build import build
from supernet.inherit import inherit
from tests.tiny import BASE, batch, inputs, shaken

EXPERTS = 3
ARCHITECTURE = Architecture.uniform(BASE, head_experts=EXPERTS)


def make(seed: int = 0, labels: int = 5, architecture: Architecture = ARCHITECTURE) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(architecture, labels=labels)
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


@pytest.mark.parametrize("labels", [1, 2, 5])
def test_costs(labels: int) -> None:
    model = make(labels=labels)
    assert cost.params(ARCHITECTURE, labels) == sum(parameter.numel() for parameter in model.parameters())
    idle = sum(p[1:].numel() for name, p in model.classifier.named_parameters() if "router" not in name)
    assert cost.params_active(ARCHITECTURE, labels) == cost.params(ARCHITECTURE, labels) - idle
    plain = Architecture.uniform(BASE)
    assert cost.macs(ARCHITECTURE, labels=labels) - cost.macs(plain, labels=labels) == 24 * 24 + 24 * EXPERTS
    assert cost.params_encoder(ARCHITECTURE) == cost.params_encoder(plain)


def test_inherits_all_but_the_head() -> None:
    supernet = shaken(build(Architecture.uniform(BASE), labels=5))
    weights = inherit(supernet.state_dict(), ARCHITECTURE)
    student = build(ARCHITECTURE, labels=5, weights=weights)
    for name, tensor in supernet.state_dict().items():
        if not name.startswith("classifier."):
            assert torch.equal(weights[name], tensor), name
    again = inherit(supernet.state_dict(), ARCHITECTURE)
    assert all(torch.equal(tensor, again[name]) for name, tensor in weights.items())
    assert not torch.equal(*student.classifier.inner.weight[:2])


@torch.no_grad()
def test_saved_and_loaded(tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True).eval()
    assert torch.equal(loaded(**inputs(batch())).logits, model(**inputs(batch())).logits)


def test_json() -> None:
    assert Architecture.from_json(ARCHITECTURE.to_json()) == ARCHITECTURE
    assert ARCHITECTURE.to_json()["head"] == {"experts": EXPERTS}
