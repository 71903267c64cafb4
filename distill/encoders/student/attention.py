"""Attention with fewer heads than fit into the width, and, in layers of BERT's kind, attention with experts."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import eager_attention_forward

from .anatomy import Family
from .dispatch import Tokens
from .expert_linear import RoutedLinear, is_batched
from .routing import Routing, make_gate


class NoSelfAttention(nn.Module):
    """Self-attention without heads: (B, T, width) -> (B, T, 0), and the probabilities (B, 0, T, T) where transformers'
    own attention returns any, so that `output_attentions` has an entry for every layer that is not left out.

    Args:
        output: the name of its output projection, in families where that is a part of it.
        norm: the name of the LayerNorm of the residual's sum, likewise.
    """

    def __init__(self, config: Any, output: str = "", norm: str = "") -> None:
        super().__init__()
        self.config, self.output, self.norm = config, output, norm

    def forward(self, hidden_states: Tensor, *unused: Any, **settings: Any) -> tuple[Tensor, Tensor | None]:
        rows, tokens, _ = hidden_states.shape
        returned = self.config._attn_implementation == "eager"
        context = hidden_states[..., :0]
        if self.output:
            context = self.get_submodule(self.output)(context)
        if self.norm:
            context = self.get_submodule(self.norm)(hidden_states + context)
        return context, hidden_states.new_empty(rows, 0, tokens, tokens) if returned else None


class Bias(nn.Module):
    """The bias, if there is one, of an output projection, all inputs of which have been removed:
    (B, T, 0) -> (B, T, width).
    """

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.width = width
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, context_BT0: Tensor) -> Tensor:
        shape = context_BT0.shape[:-1]
        return context_BT0.new_zeros(*shape, self.width) if self.bias is None else self.bias.expand(*shape, -1)


class SeparateMaps(nn.Module):
    """Query, key and value maps in the place of the one linear map that computes all three:
    (B, T, width) -> (B, T, 3 width).
    """

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=bias) for _ in range(3))

    @property
    def weight(self) -> Tensor:
        """A copy of all weights, which transformers initializes; it initializes those of the three maps, too."""
        return torch.cat((self.query.weight, self.key.weight, self.value.weight))

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        return torch.cat((self.query(hidden_BTD), self.key(hidden_BTD), self.value(hidden_BTD)), dim=-1)


def keep_heads(layer: Any, family: Family, heads: int, config: Any) -> None:
    """Give the attention of a layer this number of heads, each of which keeps its size."""
    width, bias = config.hidden_size, family.biases != "none"
    if not heads:
        inside = f"{family.self_attention}."
        paths = family.output, family.attention_norm
        names = (path.removeprefix(inside) if path.startswith(inside) else "" for path in paths)
        norm = layer.get_submodule(family.attention_norm)
        layer.set_submodule(family.self_attention, NoSelfAttention(config, *names))
        layer.set_submodule(family.output, Bias(width, bias))
        layer.set_submodule(family.attention_norm, norm)
        return
    inner, channels = layer.get_submodule(family.self_attention), heads * (width // config.num_attention_heads)
    setattr(inner, family.heads_attribute, heads)
    inner.all_head_size = channels
    for path in (family.query, family.key, family.value):
        layer.set_submodule(path, nn.Linear(width, channels, bias=bias))
    layer.set_submodule(family.output, nn.Linear(channels, width, bias=bias))


def select_position_biases(config: Any, number: int, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """A hook by which the attention of the layer of this number gets the biases of its own heads; the third argument
    has those of all heads of the teacher, (B, H, T, T).
    """
    hidden, mask, biases, *others = arguments
    if config.kept_heads is not None:
        biases = biases[:, list(config.kept_heads[number])]
    elif config.attention_heads is not None:
        biases = biases[:, : config.attention_heads[number]]
    return hidden, mask, biases, *others


class ExpertSelfAttention:
    """A mixin for a family's self-attention, in which the query, key and value of each token are computed by the
    token's expert.
    """

    config: Any
    query: Any
    key: Any
    value: Any
    dropout: nn.Dropout
    attention_head_size: int
    scaling: float
    training: bool

    def replace_maps(self, experts: int, width: int) -> None:
        """Give each of the linear maps its experts."""
        for name in ("query", "key", "value"):
            setattr(self, name, RoutedLinear(experts, width, width))

    def forward(
        self, hidden_BTD: Tensor, attention_mask: Tensor | None = None, *, routing: Routing, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        shape = (*hidden_BTD.shape[:-1], -1, self.attention_head_size)
        states = (part(hidden_BTD, routing.dispatch) for part in (self.query, self.key, self.value))
        query_BHTS, key_BHTS, value_BHTS = (state.view(shape).transpose(1, 2) for state in states)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.dropout.p if self.training else 0.0
        context, weights = attend(
            self, query_BHTS, key_BHTS, value_BHTS, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return context.reshape(hidden_BTD.shape).contiguous(), weights


class ExpertSelfOutput(nn.Module):
    """The output projection of each token's expert, weighted by the gate; then dropout, residual and LayerNorm.

    Args:
        own: the family's module, the LayerNorm and dropout of which it has.
    """

    def __init__(self, own: Any, experts: int, width: int) -> None:
        super().__init__()
        self.dense = RoutedLinear(experts, width, width)
        self.LayerNorm, self.dropout = own.LayerNorm, own.dropout

    def forward(self, hidden_BTD: Tensor, input_BTD: Tensor, routing: Routing) -> Tensor:
        change_BTD = self.dense(hidden_BTD, routing.dispatch, routing.weight_S)
        return self.LayerNorm(input_BTD + self.dropout(change_BTD))


class ExpertAttention(nn.Module):
    """Attention with several experts (MiniMoE, section 3.2): a gate chooses the expert whose linear maps process a
    token, and its weight multiplies the output before the residual connection. A token beyond the expert's capacity has
    zeros as query, key and value, as in Switch, and its output before the residual connection is zero.

    Args:
        own: the family's attention, whose self-attention has the mixin `ExpertSelfAttention`.
    """

    def __init__(self, own: Any, experts: int, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        own.self.replace_maps(experts, width)
        self.self = own.self
        self.output = ExpertSelfOutput(own.output, experts, width)
        self.router = make_gate(experts, config, is_batched(width, width), config.attention_capacity)

    def forward(
        self, hidden_BTD: Tensor, attention_mask: Tensor | None = None, *unused: Any, tokens: Tokens, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        routing = self.router(hidden_BTD, tokens)
        context_BTD, weights = self.self(hidden_BTD, attention_mask, routing=routing, **kwargs)
        return self.output(context_BTD, hidden_BTD, routing), weights
