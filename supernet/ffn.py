"""A feed-forward block that runs a graph: h <- LayerNorm(h + dropout(f(h))).

Part of every exported checkpoint: imports torch and nothing of this project.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
        program, widths, inner: an entry of `NasBertConfig.ffn`.
        config: of the model; width, dropout, epsilon of LayerNorm, the forms of gelu and mismatch.
    """

    def __init__(self, program: Sequence[Any], widths: Sequence[int], inner: int, config: Any) -> None:
        super().__init__()
        self.steps = tuple((str(op), tuple(inputs)) for op, inputs in program)
        self.mismatch = config.mismatch
        self.gelu_form = {"tanh": "tanh", "erf": "none"}[config.gelu]
        projected = next(inputs[0] for op, inputs in self.steps if op == "project")
        self.expand = nn.Linear(config.hidden_size, inner)
        if any(op == "gate" for op, _ in self.steps):
            self.gate = nn.Linear(config.hidden_size, inner)
        self.project = nn.Linear(widths[projected], config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def f(self, x_BTD: Tensor) -> Tensor:
        """The graph's function: (..., width) -> (..., width)."""
        values = [x_BTD]
        for op, inputs in self.steps:
            first = values[inputs[0]]
            if op == "expand":
                values.append(self.expand(first))
            elif op == "gate":
                values.append(self.gate(first))
            elif op == "project":
                values.append(self.project(first))
            elif op == "gelu":
                values.append(F.gelu(first, approximate=self.gelu_form))
            elif op in UNARY:
                values.append(UNARY[op](first))
            else:
                values.append(combine(op, first, values[inputs[1]], self.mismatch))
        return values[-1]

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        return self.LayerNorm(hidden_BTD + self.dropout(self.f(hidden_BTD)))
