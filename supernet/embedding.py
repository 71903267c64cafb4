"""Word embeddings of lower rank: the closest ones, in a norm in which words count by how often they occur.

Dimensions: V words, D channels of the model, R of the table of lower rank.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from distill.encoders.family import DECODERS, Family


def principal_axes(words_VD: Tensor, frequencies: Tensor) -> Tensor:
    """The orthonormal axes (D, D), one in each column, on the first R of which the words have the least mean squared
    distance to themselves, for every R: the eigenvectors of E' diag(f + 1) E, the largest eigenvalue first. So
    E V_R V_R' is the best approximation of rank R in this norm.

    Args:
        frequencies: how often each word occurs (V,); 1 is added, so that words which do not occur are not lost.
    """
    words_VD = words_VD.double()
    weighted_VD = words_VD * (frequencies + 1).to(words_VD)[:, None]
    _, axes_DD = torch.linalg.eigh(words_VD.t() @ weighted_VD)
    return axes_DD.flip(1)


def of_rank(
    weights: Mapping[str, Tensor], prefix: str, family: Family, rank: int | None, frequencies: Tensor | None = None
) -> dict[str, Tensor]:
    """The weights of a model whose word embedding has this rank; None: the full one. One that already has it is kept.

    Args:
        weights: the state dict of a model.
        prefix: what stands before the names of the base model.
        frequencies: as for `principal_axes`.

    Raises:
        ValueError: the weights are of a lower rank, or frequencies are missing. (If all words counted alike, such as
            [CLS] would be lost.)
    """
    words, word_map = (f"{prefix}{path}.weight" for path in (family.words, family.word_map))
    own = weights[words].shape[1] if word_map in weights else None
    if own == rank:
        return dict(weights)
    if own is not None and (rank is None or rank > own):
        raise ValueError(f"embedding.rank is {rank or 'the full one'}; the word embedding to inherit has rank {own}")
    assert rank is not None
    if frequencies is None:
        raise ValueError(
            f"embedding.rank is {rank}: what is kept of words depends on how often they occur, which is not known"
        )
    words_VD = weights[words] if own is None else weights[words] @ weights[word_map].t()
    axes_DR = principal_axes(words_VD, frequencies)[:, :rank].to(words_VD.dtype)
    low = {words: words_VD @ axes_DR, word_map: axes_DR.contiguous()}
    for decoder in DECODERS:  # tied to it
        if f"{decoder}.weight" in weights:
            low |= {f"{decoder}.weight": low[words], f"{decoder}.map.weight": low[word_map]}
    return dict(weights) | low
