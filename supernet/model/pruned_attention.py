"""Attention of which some heads have been pruned: the linear maps have only the channels of the others.

This file ships inside every exported checkpoint, so it imports torch, transformers and its neighbours only.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertAttention, BertSelfAttention

from .configuration_nas_bert import NasBertConfig


class PrunedSelfAttention(BertSelfAttention):
    """Self-attention with fewer heads than fit into the width, each of which keeps its size."""

    def __init__(self, config: NasBertConfig, layer_idx: int, heads: int) -> None:
        super().__init__(config, layer_idx=layer_idx)
        self.num_attention_heads, self.all_head_size = heads, heads * self.attention_head_size
        for name in ("query", "key", "value"):
            setattr(self, name, nn.Linear(config.hidden_size, self.all_head_size))


class NoSelfAttention(nn.Module):
    """Self-attention without heads: (B, T, width) -> (B, T, 0)."""

    def forward(self, hidden_states: Tensor, *unused: Any, **settings: Any) -> tuple[Tensor, None]:
        return hidden_states[..., :0], None


class Bias(nn.Module):
    """The bias of an output map, all inputs of which have been removed: (B, T, 0) -> (B, T, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, context_BT0: Tensor) -> Tensor:
        return self.bias.expand(*context_BT0.shape[:-1], -1)


class PrunedAttention(BertAttention):
    """Attention with the number of heads that `config.attention_heads` gives this layer."""

    def __init__(self, config: NasBertConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx=layer_idx)
        assert config.attention_heads is not None
        heads = config.attention_heads[layer_idx]
        if heads:
            self.self: nn.Module = PrunedSelfAttention(config, layer_idx, heads)
            self.output.dense = nn.Linear(heads * config.hidden_size // config.num_attention_heads, config.hidden_size)
        else:
            self.self = NoSelfAttention()
            self.output.dense = Bias(config.hidden_size)


def attention_fault(config: NasBertConfig) -> str:
    """Why `config.attention_heads` cannot be used; empty if it can."""
    heads = config.attention_heads
    if heads is None:
        return ""
    layers, most = config.num_hidden_layers, config.num_attention_heads
    if (
        not isinstance(heads, list | tuple)
        or len(heads) != layers
        or not all(type(count) is int and 0 <= count <= most for count in heads)
    ):
        return f"config.attention_heads must be a list of {layers} whole numbers from 0 to {most}, not {heads!r}"
    if config.attention_experts > 1:
        return "config.attention_heads must be null if attention_experts is above 1"
    return ""
