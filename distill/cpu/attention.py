"""Attention for training, in two variants: one keeps its scores for a loss, so that they are computed only once.

With torch's fused attention and its dropout, forward and backward pass take 1.2 to 1.3 times as long (16 sentences of
32 and of 128 tokens, 12 heads).
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from distill.cpu.dropout import dropout as dropout_of

# The names under which these attention implementations are registered with transformers.
SCORED, PLAIN = "scored", "plain"
_KEPT = "_attention_scores"


def attention(
    module: nn.Module,
    query_BHTS: Tensor,
    key_BHTS: Tensor,
    value_BHTS: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    keep_scores: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """As transformers' eager attention. With `keep_scores`, the scores QK^T / sqrt(head size), before mask and softmax,
    are stored in the module until `take_scores` removes them.
    """
    scale = query_BHTS.shape[-1] ** -0.5 if scaling is None else scaling
    scores_BHTT = (query_BHTS * scale) @ key_BHTS.transpose(-1, -2)
    if keep_scores:
        vars(module)[_KEPT] = scores_BHTT
    masked_scores_BHTT = scores_BHTT if attention_mask is None else scores_BHTT + attention_mask
    weights_BHTT = dropout_of(torch.softmax(masked_scores_BHTT, dim=-1).to(value_BHTS.dtype), dropout, module.training)
    return (weights_BHTT @ value_BHTS).transpose(1, 2).contiguous(), weights_BHTT


def take_scores(module: nn.Module) -> Tensor | None:
    """Remove and return the scores (B, H, T, T) that were kept in the latest forward pass; None if there are none."""
    return vars(module).pop(_KEPT, None)


for name in (SCORED, PLAIN):
    AttentionInterface.register(name, partial(attention, keep_scores=name == SCORED))
    AttentionMaskInterface.register(name, eager_mask)
