"""The linear maps of experts: each expert's weight is applied to its contiguous run of slots. Dimensions are those of
`dispatch.py`; I inputs and O outputs of a linear map.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .dispatch import Dispatch, put, take, weighted

# If an expert's linear map has at most this many weights, one batched product of padded rows is faster on a CPU than
# one product per expert (results/experts.md).
BATCHED = 24_576


def is_batched(inputs: int, outputs: int) -> bool:
    """Whether linear maps of these widths are computed in batched products of padded rows."""
    return inputs * outputs <= BATCHED


def onednn_linear() -> Callable[..., Tensor] | None:
    """oneDNN's linear map, or None if this version of torch lacks it or its behavior differs.

    In float32 it takes half the time of torch's own on AVX-512 processors by other vendors than Intel. The operator is
    private: another version of torch may lack it, or change its arguments or their meaning. It is therefore tested on a
    small product against `F.linear`, the fallback, which gives the same result up to rounding.
    """
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
    if operator is None:
        return None
    x_NI = torch.tensor([[1.0, 2.0, -3.0], [0.5, -1.0, 4.0]], dtype=torch.float32, device="cpu")
    weight_OI = torch.tensor([[2.0, -1.0, 0.5], [1.0, 3.0, -2.0]], dtype=torch.float32, device="cpu")
    bias_O = torch.tensor([-1.0, 0.25], dtype=torch.float32, device="cpu")
    try:
        agrees = all(
            torch.allclose(operator(x_NI, weight_OI, bias, "none", [], ""), F.linear(x_NI, weight_OI, bias))
            for bias in (bias_O, None)
        )
    except (RuntimeError, TypeError):  # raised by torch if the arguments or the type of the result differ
        return None
    return operator if agrees else None


_ONEDNN = onednn_linear()


def _linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """`F.linear` without a gradient."""
    if _ONEDNN is not None and x_NI.device.type == "cpu" and x_NI.dtype == torch.float32:
        return _ONEDNN(x_NI, weight_OI, bias_O, "none", [], "")
    return F.linear(x_NI, weight_OI, bias_O)


def _product(a_NI: Tensor, b_IO: Tensor, out_NO: Tensor) -> None:
    """`torch.mm` into `out_NO`."""
    if _ONEDNN is not None and a_NI.device.type == "cpu" and a_NI.dtype == torch.float32 and a_NI.shape[1]:
        out_NO.copy_(_ONEDNN(a_NI, b_IO.t(), None, "none", [], ""))
    else:
        torch.mm(a_NI, b_IO, out=out_NO)


class _GroupedLinear(Function):
    """Applies each expert's linear map to its run of rows, with an explicit backward pass."""

    @staticmethod
    def forward(ctx: Any, x_SI: Tensor, weight_EOI: Tensor, bias_EO: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
        ctx.save_for_backward(x_SI, weight_EOI)
        ctx.runs = runs
        y_SO = x_SI.new_empty(len(x_SI), weight_EOI.shape[1])
        for expert, (first, end) in enumerate(runs):
            if end > first:
                y_SO[first:end] = _linear(x_SI[first:end], weight_EOI[expert], bias_EO[expert])
        return y_SO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SO: Tensor) -> tuple[Tensor | None, ...]:
        x_SI, weight_EOI = ctx.saved_tensors
        grad_SO = grad_SO.contiguous()
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_SI = torch.empty_like(x_SI) if needs_x else None
        grad_EOI = torch.empty_like(weight_EOI) if needs_weight else None
        grad_EO = grad_SO.new_zeros(weight_EOI.shape[:2]) if needs_bias else None
        for expert, (first, end) in enumerate(ctx.runs):
            rows = grad_SO[first:end]
            if grad_SI is not None and end > first:
                _product(rows, weight_EOI[expert], grad_SI[first:end])
            if grad_EOI is not None:
                _product(rows.t(), x_SI[first:end], grad_EOI[expert])
            if grad_EO is not None:
                torch.sum(rows, dim=0, out=grad_EO[expert])
        return grad_SI, grad_EOI, grad_EO, None


def grouped_linear(x_SI: Tensor, weight_EOI: Tensor, bias_EO: Tensor, dispatch: Dispatch) -> Tensor:
    """Apply to each slot the linear map of its expert: (S, I) -> (S, O)."""
    device = x_SI.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x_SI, weight_EOI, bias_EO = x_SI.to(dtype), weight_EOI.to(dtype), bias_EO.to(dtype)
    experts, outputs, inputs = weight_EOI.shape
    if dispatch.dense:
        # One product for each expert, since quantization of exported models expects weights of two dimensions.
        x_ENI = x_SI.reshape(experts, -1, inputs)
        return torch.cat([F.linear(x_ENI[e], weight_EOI[e], bias_EO[e]) for e in range(experts)])
    if dispatch.real_S is not None:
        x_ECI = x_SI.reshape(experts, -1, inputs)
        return torch.baddbmm(bias_EO[:, None], x_ECI, weight_EOI.transpose(1, 2)).view(len(x_SI), outputs)
    return _GroupedLinear.apply(x_SI, weight_EOI, bias_EO, dispatch.runs)


class ExpertLinear(nn.Module):
    """One linear map for each expert: `weight` (E, O, I) and `bias` (E, O)."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(count, outputs))

    def forward(self, x_SI: Tensor, dispatch: Dispatch) -> Tensor:
        """Map slots to slots: (S, I) -> (S, O)."""
        return grouped_linear(x_SI, self.weight, self.bias, dispatch)


class RoutedLinear(ExpertLinear):
    """An `ExpertLinear` on tokens, which gathers them into slots and scatters the results back."""

    def forward(self, x_BTI: Tensor, dispatch: Dispatch, weight_S: Tensor | None = None) -> Tensor:
        """(B, T, I) -> (B, T, O), each slot multiplied by `weight_S`; zero for tokens without an expert."""
        y_SO = super().forward(take(x_BTI.reshape(-1, x_BTI.shape[-1]), dispatch), dispatch)
        return put(weighted(y_SO, weight_S), dispatch).view(*x_BTI.shape[:2], self.weight.shape[1])
