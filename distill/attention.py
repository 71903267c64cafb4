"""An attention that leaves its scores where a loss can find them, so that they are computed once."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

# The name of this implementation of attention in Hugging Face models.
SCORED = "scored"
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
    """As transformers' eager attention; QK^T / sqrt(head size), before mask and softmax, stays with the module until
    `take_scores` fetches it.
    """
    scale = query_BHTS.shape[-1] ** -0.5 if scaling is None else scaling
    scores_BHTT = query_BHTS @ key_BHTS.transpose(-1, -2) * scale
    vars(module)[_KEPT] = scores_BHTT
    masked_BHTT = scores_BHTT if attention_mask is None else scores_BHTT + attention_mask
    weights_BHTT = F.dropout(torch.softmax(masked_BHTT, dim=-1), p=dropout, training=module.training)
    return (weights_BHTT @ value_BHTS).transpose(1, 2).contiguous(), weights_BHTT


def take_scores(module: nn.Module) -> Tensor | None:
    """The scores (B, H, T, T) of this attention's latest pass, once; None where it keeps none."""
    return vars(module).pop(_KEPT, None)


AttentionInterface.register(SCORED, scored_attention)
AttentionMaskInterface.register(SCORED, eager_mask)
