"""Which channels of a dense feed-forward network each of its experts takes."""

import torch
from torch import Tensor

from search_spaces.architecture import Base, Genes


def expert_channels(base: Base, genes: Genes) -> Tensor:
    """The channels of the dense FFN, in their order of importance, that each expert of a layer has: (E, m).

    Expert i has the s channels that all share and, of the others, every E-th from the i-th on (MoEBERT, section 3.1).
    If the graph combines inner channels with leading channels of x, an expert pairs its own by position; those shared
    are paired as in the dense FFN.
    """
    inner, shared, count = genes.inner(base), genes.shared(base), genes.experts.count
    others = shared + torch.arange(inner - shared) * count
    rows = [torch.cat((torch.arange(shared), others + expert)) for expert in range(count)]
    return torch.stack(rows)
