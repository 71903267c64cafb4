"""oneDNN's private operator: whatever a version of torch makes of it, experts compute the same."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from distill.encoders.student import expert_linear
from distill.encoders.student.expert_linear import onednn_linear
from tests import requirements


def another_signature(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def another_meaning(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    return F.relu(F.linear(x, weight, bias))


def another_result(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, None]:
    return F.linear(x, weight, bias), None


def failing(*given: Any) -> Tensor:
    raise RuntimeError("mkldnn::_linear_pointwise() is missing value for argument 'algorithm'")


@pytest.mark.parametrize("operator", [another_signature, another_meaning, another_result, failing, None])
def test_an_operator_that_differs_or_is_missing_is_not_used(monkeypatch: pytest.MonkeyPatch, operator: Any) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(_linear_pointwise=operator))
    assert onednn_linear() is None


def test_public_operators_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    if expert_linear._ONEDNN is None:
        requirements.missing("needs a version of torch with this operator")
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
