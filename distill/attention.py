"""Attention for training: with its scores where a loss can find them, so that they are computed once, and without."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from distill.dropout import dropout as dropped

# The names of these implementations of attention in Hugging Face models.
SCORED, PLAIN = "scored", "plain"
_KEPT = "_attention_scores"


def scored_attention(
    module: nn.Module,
    query_BHTS: Tensor,
    key_BHTS: Tensor,
    value_BHTS: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """As `plain_attention`; QK^T / sqrt(head size), before mask and softmax, stays with the module until `take_scores`
    fetches it.
    """
    scores_BHTT = _scores(query_BHTS, key_BHTS, scaling)
    vars(module)[_KEPT] = scores_BHTT
    return _attend(module, scores_BHTT, value_BHTS, attention_mask, dropout)


def plain_attention(
    module: nn.Module,
    query_BHTS: Tensor,
    key_BHTS: Tensor,
    value_BHTS: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """As transformers' eager attention."""
    return _attend(module, _scores(query_BHTS, key_BHTS, scaling), value_BHTS, attention_mask, dropout)


def _scores(query_BHTS: Tensor, key_BHTS: Tensor, scaling: float | None) -> Tensor:
    scale = query_BHTS.shape[-1] ** -0.5 if scaling is None else scaling
    return (query_BHTS * scale) @ key_BHTS.transpose(-1, -2)


def _attend(
    module: nn.Module, scores_BHTT: Tensor, value_BHTS: Tensor, mask: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    masked_BHTT = scores_BHTT if mask is None else scores_BHTT + mask
    weights_BHTT = dropped(torch.softmax(masked_BHTT, dim=-1).to(value_BHTS.dtype), dropout, module.training)
    return (weights_BHTT @ value_BHTS).transpose(1, 2).contiguous(), weights_BHTT


def take_scores(module: nn.Module) -> Tensor | None:
    """The scores (B, H, T, T) of this attention's latest pass, once; None where it keeps none."""
    return vars(module).pop(_KEPT, None)


for name, attention in ((SCORED, scored_attention), (PLAIN, plain_attention)):
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, eager_mask)
