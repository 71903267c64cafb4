"""A feed-forward block that runs a graph: h <- LayerNorm(h + dropout(f(h))), f dense or one of several experts.

Part of every exported checkpoint: imports torch and its neighbour only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .routing import BATCHED, HASHES, Dispatch, ExpertLinear, Router, Routing, Tokens, put, take, weighted

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,  # slope 0.01
    "elu": F.elu,
    "swish": F.silu,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "max": torch.maximum,
}


def combine(op: str, a: Tensor, b: Tensor, mismatch: str) -> Tensor:
    """Binary operation on the leading channels that `a` (..., A) and `b` (..., B) share.

    `mismatch="narrow"` returns those min(A, B) channels; `"wide"` appends the wider one's other channels.
    """
    function = BINARY[op]
    shared = min(a.shape[-1], b.shape[-1])
    if a.shape[-1] == b.shape[-1]:
        return function(a, b)
    result = function(a[..., :shared], b[..., :shared])
    if mismatch == "narrow":
        return result
    wider = a if a.shape[-1] > shared else b
    return torch.cat((result, wider[..., shared:].to(result.dtype)), dim=-1)


class FFNBlock(nn.Module):
    """One block of a layer.

    Args:
        program, widths, inner, experts: an entry of `NasBertConfig.ffn`.
        config: of the model; width, dropout, epsilon of LayerNorm, the forms of gelu and mismatch.
    """

    def __init__(
        self,
        program: Sequence[Any],
        widths: Sequence[int],
        inner: int,
        config: Any,
        experts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.steps = tuple((str(op), tuple(inputs)) for op, inputs in program)
        self.mismatch = config.mismatch
        self.gelu_form = {"tanh": "tanh", "erf": "none"}[config.gelu]
        projected = widths[next(inputs[0] for op, inputs in self.steps if op == "project")]

        def linear(inputs: int, outputs: int) -> nn.Module:
            return nn.Linear(inputs, outputs) if experts is None else ExpertLinear(experts["count"], inputs, outputs)

        self.expand = linear(config.hidden_size, inner)
        if any(op == "gate" for op, _ in self.steps):
            self.gate = linear(config.hidden_size, inner)
        self.project = linear(projected, config.hidden_size)
        self.router = None
        if experts is not None and experts["routing"] not in HASHES:
            self.router = Router(experts, config, is_batched(config.hidden_size, inner))
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def f(self, x: Tensor, *sent: Dispatch) -> Tensor:
        """The graph's function: (..., width) -> (..., width); of experts with slots (S, width) and their dispatch."""
        values = [x]
        for op, inputs in self.steps:
            first = values[inputs[0]]
            if op == "expand":
                values.append(self.expand(first, *sent))
            elif op == "gate":
                values.append(self.gate(first, *sent))
            elif op == "project":
                values.append(self.project(first, *sent))
            elif op == "gelu":
                values.append(F.gelu(first, approximate=self.gelu_form))
            elif op in UNARY:
                values.append(UNARY[op](first))
            else:
                values.append(combine(op, first, values[inputs[1]], self.mismatch))
        return values[-1]

    def routed(self, hidden_BTD: Tensor, routing: Routing) -> Tensor:
        """Each token's experts: (B, T, width) -> (B, T, width), zero where a token has none."""
        y_SD = self.f(take(hidden_BTD.reshape(-1, hidden_BTD.shape[-1]), routing.dispatch), routing.dispatch)
        return put(weighted(y_SD, routing.weight_S), routing.dispatch).view(hidden_BTD.shape)

    def forward(self, hidden_BTD: Tensor, tokens: Tokens | None = None, routing: Routing | None = None) -> Tensor:
        """`tokens` are needed by experts with a gate, `routing` by those without one."""
        if self.router is not None:
            assert tokens is not None
            routing = self.router(hidden_BTD, tokens)
        change_BTD = self.f(hidden_BTD) if routing is None else self.routed(hidden_BTD, routing)
        return self.LayerNorm(hidden_BTD + self.dropout(change_BTD))


def is_batched(width: int, inner: int) -> bool:
    """Whether experts of these widths are computed in batched products of padded rows."""
    return width * inner <= BATCHED
