"""Attention for training: with its scores where a loss can find them, so that they are computed once, and without."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from distill.cpu.dropout import dropout as dropped

# The names of these implementations of attention in Hugging Face models.
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
    keep: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """As transformers' eager attention; with `keep`, QK^T / sqrt(head size), before mask and softmax, stays with the
    module until `take_scores` fetches it.
    """
    scale = query_BHTS.shape[-1] ** -0.5 if scaling is None else scaling
    scores_BHTT = (query_BHTS * scale) @ key_BHTS.transpose(-1, -2)
    if keep:
        vars(module)[_KEPT] = scores_BHTT
    masked_BHTT = scores_BHTT if attention_mask is None else scores_BHTT + attention_mask
    weights_BHTT = dropped(torch.softmax(masked_BHTT, dim=-1).to(value_BHTS.dtype), dropout, module.training)
    return (weights_BHTT @ value_BHTS).transpose(1, 2).contiguous(), weights_BHTT


def take_scores(module: nn.Module) -> Tensor | None:
    """The scores (B, H, T, T) of this attention's latest pass, once; None where it keeps none."""
    return vars(module).pop(_KEPT, None)


for name in (SCORED, PLAIN):
    AttentionInterface.register(name, partial(attention, keep=name == SCORED))
    AttentionMaskInterface.register(name, eager_mask)
