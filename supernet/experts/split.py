"""How a dense feed-forward network becomes experts: which channels each has, and the tables and gates that choose."""

from collections.abc import Sequence
from heapq import heapreplace

import torch
from torch import Tensor

from search_spaces.architecture import Base, Experts, Genes

DEVIATION = 0.02


def expert_channels(base: Base, genes: Genes) -> Tensor:
    """The channels of the dense FFN, in their order of importance, that each expert of a layer has: (E, m).

    Expert i has the s that all share and of the others every E-th from the i-th on (MoEBERT, section 3.1). Where a
    graph combines inner channels with leading channels of x, an expert pairs its own by position; those shared are
    paired as in the dense FFN.
    """
    inner, shared, count = genes.inner(base), genes.shared(base), genes.experts.count
    others = shared + torch.arange(inner - shared) * count
    rows = [torch.cat((torch.arange(shared), others + number)) for number in range(count)]
    return torch.stack(rows)


def routing_table(
    experts: Experts, vocabulary: int, layer: int, frequencies: Sequence[int] | Tensor | None = None
) -> Tensor:
    """The expert of every token id for hash routing: (vocabulary,) uint8.

    "hash" draws one for every id and layer (MoEBERT, section 3.3; Roller et al., 2021), the same whenever it is asked
    for; as strided experts of 2, 4 and 8 are nested, so are these. "balanced_hash" goes through the ids in order of
    frequency and gives each to the expert with the least so far; ids of frequency 0 are as "hash" has them.

    Args:
        frequencies: how often each id occurs in training data (vocabulary,); needed by "balanced_hash".
    """
    generator = torch.Generator().manual_seed(layer)
    table = torch.randint(2**31, (vocabulary,), generator=generator) % experts.count
    if experts.routing == "balanced_hash":
        if frequencies is None:
            raise ValueError("balanced_hash shares out the tokens of training data: it needs their frequencies")
        counts = torch.as_tensor(frequencies)
        if counts.shape != (vocabulary,):
            raise ValueError(f"frequencies are of {tuple(counts.shape)} ids; the vocabulary has {vocabulary}")
        seen = torch.argsort(counts, descending=True, stable=True)[: int((counts > 0).sum())]
        loads = [(0, expert) for expert in range(experts.count)]  # a heap
        chosen = []
        for count in counts[seen].tolist():
            load, lightest = loads[0]
            heapreplace(loads, (load + count, lightest))
            chosen.append(lightest)
        table[seen] = torch.tensor(chosen, dtype=table.dtype)
    return table.to(torch.uint8)


def new_gate(count: int, width: int, seed: int, like: Tensor) -> Tensor:
    """A gate's starting weight (count, width); fewer experts of the same seed have the first rows."""
    generator = torch.Generator().manual_seed(seed)
    return (DEVIATION * torch.randn(count, width, generator=generator)).to(like)


def new_head(count: int, classifier: Tensor) -> dict[str, Tensor]:
    """The starting weights of a head of `count` prediction layers, by their names in it, in place of a linear map of
    weight `classifier` (outputs, width): the softmax between leaves nothing of that map to take over.
    """
    outputs, width = classifier.shape
    generator = torch.Generator().manual_seed(count)
    maps = {"inner": (count, width, width), "outer": (count, outputs, width)}
    result = {"router.weight": new_gate(count, width, 0, classifier)}
    for name, shape in maps.items():
        result[f"{name}.weight"] = (DEVIATION * torch.randn(shape, generator=generator)).to(classifier)
        result[f"{name}.bias"] = classifier.new_zeros(shape[:2])
    return result
