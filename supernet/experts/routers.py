"""What routers, and heads of several prediction layers, start with; everything random comes from a seed."""

import random
from collections.abc import Callable, Sequence
from heapq import heapreplace

import torch
from torch import Generator, Tensor

from search_spaces.architecture import Architecture, Experts

DEVIATION = 0.02


def _generator(seed: int, number: int) -> Generator:
    """A generator for one of the things that a model draws, which have different numbers."""
    # Seed 0 must stay what it is, the numbers themselves: the tables of existing studies hang on it. Torch's generator
    # on CPUs uses the lowest 32 bits.
    return Generator().manual_seed(random.Random(f"{seed}/{number}").getrandbits(32) if seed else number)


def random_table(count: int, vocabulary: int, generator: Generator, frequencies: Tensor | None) -> Tensor:
    """A random expert for every token id (MoEBERT, section 3.3; Roller et al., 2021). As strided experts of 2, 4 and 8
    are nested, so are their tables.
    """
    return torch.randint(2**31, (vocabulary,), generator=generator) % count


def balanced_table(count: int, vocabulary: int, generator: Generator, frequencies: Tensor | None) -> Tensor:
    """Goes through the token ids by descending frequency, equal ones by id, and gives each to the expert with the
    fewest tokens so far (Roller et al., 2021); ids of frequency 0 are as in `random_table`.
    """
    assert frequencies is not None  # `routing_table` checks it
    table = random_table(count, vocabulary, generator, frequencies)
    frequent = torch.argsort(frequencies, descending=True, stable=True)[: int((frequencies > 0).sum())]
    loads = [(0, expert) for expert in range(count)]  # a heap
    experts = []
    for frequency in frequencies[frequent].tolist():
        load, lightest = loads[0]
        heapreplace(loads, (load + frequency, lightest))
        experts.append(lightest)
    table[frequent] = torch.tensor(experts, dtype=table.dtype)
    return table


# How the table of each routing that is not learned is made: from the number of experts, the size of the vocabulary, a
# generator and, if the routing needs them, the frequencies (vocabulary,); to (vocabulary,) numbers of experts.
TABLES: dict[str, Callable[[int, int, Generator, Tensor | None], Tensor]] = {
    "hash": random_table,
    "balanced_hash": balanced_table,
}


def routing_table(
    experts: Experts,
    vocabulary: int,
    layer: int,
    frequencies: Sequence[int] | Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """The expert of every token id in a layer with these experts: (vocabulary,) uint8.

    Args:
        frequencies: how often each id occurs in training data (vocabulary,), for routings that need them.
        seed: what the table is drawn from, together with the layer; the same seed gives the same table.

    Raises:
        ValueError: frequencies are missing or of another vocabulary, or `TABLES` does not have the routing.
    """
    if experts.routing not in TABLES:
        raise ValueError(f"no table for {experts.routing!r} routing; known are {', '.join(TABLES)}")
    counts = None
    if experts.kind.needs_frequencies:
        if frequencies is None:
            raise ValueError(f"{experts.routing} shares out the tokens of training data: it needs their frequencies")
        counts = torch.as_tensor(frequencies)
        if counts.shape != (vocabulary,):
            raise ValueError(f"frequencies are of {tuple(counts.shape)} ids; the vocabulary has {vocabulary}")
    table = TABLES[experts.routing](experts.count, vocabulary, _generator(seed, layer), counts)
    return table.to(torch.uint8)


def routing_tables(
    architecture: Architecture, prefix: str, frequencies: Tensor | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """The tables of all layers that have one, by their names in the state dict.

    Args:
        prefix: what comes before the number of the layer in a name.
        frequencies, seed: as for `routing_table`.
    """
    vocabulary = architecture.base.vocabulary
    return {
        f"{prefix}{layer}.router.table": routing_table(genes.experts, vocabulary, layer, frequencies, seed)
        for layer, genes in enumerate(architecture.layers)
        if genes.experts.count > 1 and not genes.experts.kind.learned
    }


def initial_gate(count: int, width: int, number: int, like: Tensor, seed: int = 0) -> Tensor:
    """The weight (count, width) that a gate starts with; one of fewer experts has the leading rows of it.

    Args:
        number: tells the gates of a model apart.
        like: gives device and type.
    """
    return (DEVIATION * torch.randn(count, width, generator=_generator(seed, number))).to(like)


def initial_head(count: int, classifier: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """What a head of `count` prediction layers starts with, by the names in it.

    Args:
        classifier: the weight (outputs, width) of the linear map that it replaces. Only its shape, device and type are
            taken over: the softmax inside a prediction layer leaves no use for the values.
    """
    outputs, width = classifier.shape
    generator = _generator(seed, count)
    shapes = {"inner": (count, width, width), "outer": (count, outputs, width)}
    tensors = {"router.weight": initial_gate(count, width, 0, classifier, seed)}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = (DEVIATION * torch.randn(shape, generator=generator)).to(classifier)
        tensors[f"{name}.bias"] = classifier.new_zeros(shape[:2])
    return tensors
