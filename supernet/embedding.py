"""Word embeddings of lower rank: the closest ones, in a norm in which tokens count by how often they occur.

Dimensions: V tokens of the vocabulary, D channels of the model, R of the table of lower rank.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from distill.encoders.family import decoders
from distill.encoders.student.anatomy import Family


def principal_axes(embedding_VD: Tensor, frequencies: Tensor) -> Tensor:
    """Orthonormal axes (D, D), one per column, such that projecting the embedding E onto the first R of them, which
    gives E V_R V_R', has the least squared error, weighted by frequency, for every R: the eigenvectors of
    E' diag(f + 1) E, the largest eigenvalue first.

    Args:
        embedding_VD: the embedding, E.
        frequencies: how often each token occurs, f (V,); 1 is added, so that tokens which do not occur are not lost.
    """
    embedding_VD = embedding_VD.double()
    weighted_VD = embedding_VD * (frequencies + 1).to(embedding_VD)[:, None]
    _, axes_DD = torch.linalg.eigh(embedding_VD.t() @ weighted_VD)
    return axes_DD.flip(1)


def of_rank(
    weights: Mapping[str, Tensor],
    prefix: str,
    family: Family,
    rank: int | None,
    frequencies: Tensor | None = None,
    tied: bool = True,
) -> dict[str, Tensor]:
    """The weights of a model whose word embedding has this rank; None: the full one. One that already has it is kept.

    Args:
        weights: the state dict of a model.
        prefix: what stands before the names of the base model.
        frequencies: as for `principal_axes`.
        tied: whether an output embedding is the word embedding.

    Raises:
        ValueError: the weights are of a lower rank, or frequencies are missing. (If all tokens counted alike, [CLS] and
            [SEP] would be lost.)
    """
    words, word_map = (f"{prefix}{path}.weight" for path in (family.words, family.word_map))
    own = weights[words].shape[1] if word_map in weights else None
    if own == rank:
        return dict(weights)
    if own is not None and (rank is None or rank > own):
        raise ValueError(f"embedding.rank: {rank or 'the full rank'} is above the checkpoint's rank, {own}: lower it")
    assert rank is not None
    if frequencies is None:
        has = f"rank {own}" if own else "full rank"
        raise ValueError(
            f"embedding.rank is {rank}, but the checkpoint's word embedding has {has}, and factorizing it needs "
            f"token frequencies, which are not known: start from a student of rank {rank}"
        )
    embedding_VD = weights[words] if own is None else weights[words] @ weights[word_map].t()
    axes_DR = principal_axes(embedding_VD, frequencies)[:, :rank].to(embedding_VD.dtype)
    low = {words: embedding_VD @ axes_DR, word_map: axes_DR.contiguous()}
    for decoder in decoders() if tied else ():
        if f"{decoder}.weight" in weights:
            low |= {f"{decoder}.weight": low[words], f"{decoder}.map.weight": low[word_map]}
    return dict(weights) | low
