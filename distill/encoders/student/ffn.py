"""A feed-forward block that computes a graph f, either dense or with experts: h <- LayerNorm(h + dropout(f(h))), or in
families with the LayerNorm before it h <- h + dropout(f(LayerNorm(h))).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dispatch import Dispatch, Tokens, put, take, weighted
from .expert_linear import ExpertLinear, is_batched
from .families import FAMILIES
from .routing import Routing, router_class

# The operations of `search_spaces.operations.OPERATIONS` that are not linear maps. The model's configuration chooses
# between the two forms of `gelu`.
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
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
LINEAR = ("expand", "gate", "project")
# The operations whose code ships in a checkpoint; others may be added to the dictionaries at run time.
EXPORTED_OPERATIONS = frozenset((*UNARY, *BINARY, *LINEAR))


def combine(op: str, a: Tensor, b: Tensor, mismatch: str) -> Tensor:
    """Apply a binary operation to the leading channels that `a` (..., A) and `b` (..., B) have in common.

    Returns:
        The resulting min(A, B) channels if `mismatch` is "narrow"; if it is "wide", followed by the remaining channels
        of the wider input, max(A, B) channels in total.
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
        config: the model's configuration: width, dropout, epsilon of LayerNorm, form of gelu, and mismatch.

    Raises:
        ValueError: there is no such operation or router, or an operation has no such inputs.
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
        for step, (op, inputs) in enumerate(self.steps):
            if op not in UNARY and op not in BINARY and op not in LINEAR:
                known = ", ".join((*LINEAR, *UNARY, *BINARY))
                raise ValueError(f"no operation is called {op!r}; known are {known}")
            earlier = (isinstance(number, int) and 0 <= number <= step for number in inputs)
            if len(inputs) != (2 if op in BINARY else 1) or not all(earlier):
                raise ValueError(f"the inputs of {op} must be numbers of earlier values, not {list(inputs)}")
        self.mismatch = config.mismatch
        self.gelu_form = {"tanh": "tanh", "erf": "none"}[config.gelu]
        projected = widths[next(inputs[0] for op, inputs in self.steps if op == "project")]

        family = FAMILIES[config.model_type]

        def linear(inputs: int, outputs: int, bias: bool) -> nn.Module:
            if experts is None:
                return nn.Linear(inputs, outputs, bias=bias)
            return ExpertLinear(experts["count"], inputs, outputs)

        self.expand = linear(config.hidden_size, inner, family.biases == "all")
        if any(op == "gate" for op, _ in self.steps):
            self.gate = linear(config.hidden_size, inner, family.biases == "all")
        self.project = linear(projected, config.hidden_size, family.biases != "none")
        self.router = None
        if experts is not None and router_class(experts).reads_hidden_states:
            self.router = router_class(experts)(experts, config, is_batched(config.hidden_size, inner))
        self.pre_norm = family.pre_norm
        epsilon = family.norm_epsilon(config)
        self.LayerNorm: nn.Module = (
            nn.RMSNorm(config.hidden_size, eps=epsilon)
            if family.rms_norm
            else nn.LayerNorm(config.hidden_size, eps=epsilon, bias=family.norm_biases)
        )
        dropout = family.dropouts[0]
        self.dropout = nn.Identity() if dropout is None else nn.Dropout(getattr(config, dropout))

    def normalized(self, hidden: Tensor) -> Tensor:
        """What the graph's function gets for these hidden states (..., width)."""
        return self.LayerNorm(hidden) if self.pre_norm else hidden

    def f(self, x: Tensor, *dispatch: Dispatch) -> Tensor:
        """The graph's function: (..., width) -> (..., width). With experts, on slots (S, width) and with their
        dispatch.
        """
        values = [x]
        for op, inputs in self.steps:
            values.append(self.apply_op(op, [values[number] for number in inputs], *dispatch))
        return values[-1]

    def apply_op(self, op: str, values: Sequence[Tensor], *dispatch: Dispatch) -> Tensor:
        """Apply one operation of the graph to its inputs."""
        if op in LINEAR:
            result: Tensor = getattr(self, op)(values[0], *dispatch)
            return result
        if op == "gelu":
            return F.gelu(values[0], approximate=self.gelu_form)
        if op in UNARY:
            return UNARY[op](values[0])
        return combine(op, values[0], values[1], self.mismatch)

    def routed(self, hidden_BTD: Tensor, routing: Routing) -> Tensor:
        """Process each token by its experts: (B, T, width) -> (B, T, width), zero for a token without an expert."""
        y_SD = self.f(take(hidden_BTD.reshape(-1, hidden_BTD.shape[-1]), routing.dispatch), routing.dispatch)
        return put(weighted(y_SD, routing.weight_S), routing.dispatch).view(hidden_BTD.shape)

    def forward(self, hidden_BTD: Tensor, tokens: Tokens | None = None, routing: Routing | None = None) -> Tensor:
        """(B, T, width) -> (B, T, width). A block with its own router requires `tokens`; one with the layer's
        `routing`.
        """
        x_BTD = self.normalized(hidden_BTD)
        if self.router is not None:
            assert tokens is not None
            routing = self.router(x_BTD, tokens)
        change_BTD = self.f(x_BTD) if routing is None else self.routed(x_BTD, routing)
        sum_BTD = hidden_BTD + self.dropout(change_BTD)
        return sum_BTD if self.pre_norm else self.LayerNorm(sum_BTD)
