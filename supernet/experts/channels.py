"""The assignment of a dense feed-forward network's channels to its experts."""

import torch
from torch import Tensor

from search_spaces.base import Base
from search_spaces.layer import FFN


def expert_channels(base: Base, ffn: FFN) -> Tensor:
    """The indices of the channels of each expert of a layer, (E, m), in a dense FFN sorted by importance.

    Expert i has the s channels that all experts share and, of the others, every E-th starting with the i-th (MoEBERT,
    section 3.1). If the graph combines inner channels with the leading channels of x, an expert pairs its channels by
    their position in the expert; for the shared ones this is the same as in the dense FFN.
    """
    inner, shared, count = ffn.inner(base), ffn.shared_channels(base), ffn.experts.count
    others = shared + torch.arange(inner - shared) * count
    rows = [torch.cat((torch.arange(shared), others + expert)) for expert in range(count)]
    return torch.stack(rows)
