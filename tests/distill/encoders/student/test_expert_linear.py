"""oneDNN's private operator: whatever a version of torch makes of it, experts compute the same."""

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from distill.encoders.student import expert_linear
from distill.encoders.student.expert_linear import onednn_linear
from search_spaces import Architecture, Base, Experts
from supernet.build import build
from tests.tiny import batch, inputs, shaken


def another_signature(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def another_meaning(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    return F.relu(F.linear(x, weight, bias))


def another_result(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, None]:
    return F.linear(x, weight, bias), None


def failing(*given: Any) -> Tensor:
    raise RuntimeError("mkldnn::_linear_pointwise() is missing value for argument 'algorithm'")


@pytest.mark.parametrize("operator", [another_signature, another_meaning, another_result, failing])
def test_an_operator_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch, operator: Any) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(_linear_pointwise=operator))
    assert onednn_linear() is None


def test_a_missing_operator_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    assert onednn_linear() is None


def test_public_operators_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    if expert_linear._ONEDNN is None:
        pytest.skip("this version of torch has no such operator")
    generator = torch.Generator().manual_seed(0)
    runs = ((0, 5), (5, 5), (5, 12))
    results = []
    for operator in (expert_linear._ONEDNN, None):
        monkeypatch.setattr(expert_linear, "_ONEDNN", operator)
        generator.manual_seed(0)
        tensors = [torch.randn(shape, generator=generator) for shape in ((12, 32), (3, 64, 32), (3, 64))]
        x_SI, weight_EOI, bias_EO = (tensor.requires_grad_() for tensor in tensors)
        y_SO = expert_linear._GroupedLinear.apply(x_SI, weight_EOI, bias_EO, runs)
        results.append([y_SO, *torch.autograd.grad(y_SO.square().sum(), (x_SI, weight_EOI, bias_EO))])
    for private, public in zip(*results, strict=True):
        torch.testing.assert_close(private, public, rtol=1e-5, atol=1e-5)


# Loads a checkpoint where the operator takes other arguments, as in another version of torch.
ANOTHER_VERSION = """
import json, sys
import torch, transformers
from safetensors.torch import load_file

class Operators:
    def _linear_pointwise(self, x, weight):
        return torch.nn.functional.linear(x, weight)

torch.ops.mkldnn = Operators()
tensors = load_file("tensors.safetensors")
expected = tensors.pop("logits")
model = transformers.AutoModelForSequenceClassification.from_pretrained("model", trust_remote_code=True).eval()
with torch.no_grad():
    logits = model(**tensors).logits
print(json.dumps({"module": type(model).__module__, "error": float((logits - expected).abs().max())}))
"""


def test_a_checkpoint_runs_on_another_version_of_torch(tmp_path: Path) -> None:
    # Wide enough not to be computed in batched products, which do without the operator.
    base = Base(depth=2, width=200, heads=4, inner=400, vocabulary=50, positions=20)
    architecture = Architecture.uniform(
        base, expansion=Fraction(1, 2), experts=Experts(2, Fraction(1, 2), "token_gate")
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = shaken(build(architecture, labels=3), scale=0.01).eval()
    model.save_pretrained(tmp_path / "model")
    with torch.no_grad():
        logits = model(**inputs(batch())).logits
    save_file({"logits": logits, **inputs(batch())}, tmp_path / "tensors.safetensors")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.run(
        [sys.executable, "-I", "-c", ANOTHER_VERSION], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert result["module"].startswith("transformers_modules.")
    assert result["error"] < 1e-5
