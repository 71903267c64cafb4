"""Initial weights and tables of routers, and of heads with several prediction layers, from a seed."""

import random
from collections.abc import Callable, Sequence
from heapq import heapreplace

import torch
from torch import Generator, Tensor

from distill.encoders.family import TABLE
from search_spaces.architecture import Architecture
from search_spaces.layer import Experts

DEVIATION = 0.02


def _generator(seed: int, number: int) -> Generator:
    """A random generator for one component of a model; each component has its own number."""
    # With seed 0 the numbers themselves are the seeds; the routing tables of existing studies depend on this. Torch's
    # CPU generator uses the lowest 32 bits.
    return Generator().manual_seed(random.Random(f"{seed}/{number}").getrandbits(32) if seed else number)


def random_table(count: int, vocabulary: int, generator: Generator, frequencies: Tensor | None) -> Tensor:
    """A random expert for every token id (MoEBERT, section 3.3; Roller et al., 2021).

    The tables for 2, 4 and 8 experts are nested, like the channels of these experts.
    """
    return torch.randint(2**31, (vocabulary,), generator=generator) % count


def balanced_table(count: int, vocabulary: int, generator: Generator, frequencies: Tensor | None) -> Tensor:
    """Greedily balanced experts (Roller et al., 2021): in order of descending frequency, ties by id, each token id is
    assigned to the expert with the fewest tokens so far. Ids of frequency 0 are assigned as in `random_table`.
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


# For each routing that is not learned, the function that makes its table: from the number of experts, the size of the
# vocabulary, a generator and the frequencies (vocabulary,), if the routing needs them, to expert numbers (vocabulary,).
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
        frequencies: frequency of every token id in training data (vocabulary,), for routings that need it.
        seed: determines the table together with the layer's number.

    Raises:
        ValueError: frequencies are missing or do not match the vocabulary, or `TABLES` does not have the routing.
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
    """The routing tables of all layers that have one, by their names in the state dict.

    Args:
        prefix: the part of the names before the layer's number.
        frequencies, seed: as for `routing_table`.
    """
    vocabulary = architecture.base.vocabulary
    return {
        f"{prefix}{layer}.{TABLE}": routing_table(ffn.experts, vocabulary, layer, frequencies, seed)
        for layer, ffn in enumerate(architecture.ffns)
        if ffn.experts.count > 1 and not ffn.experts.gated
    }


def initial_gate(count: int, width: int, number: int, like: Tensor, seed: int = 0) -> Tensor:
    """The initial weight (count, width) of a gate. A gate with fewer experts gets the leading rows of the same weight.

    Args:
        number: distinguishes the gates of a model.
        like: determines device and dtype.
    """
    return (DEVIATION * torch.randn(count, width, generator=_generator(seed, number))).to(like)


def initial_head(count: int, classifier: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """The initial state dict of a head with `count` prediction layers.

    Args:
        classifier: the weight (outputs, width) of the linear classifier that the head replaces. Only its shape, device
            and dtype are used; its values do not fit a prediction layer, which has a softmax inside.
    """
    outputs, width = classifier.shape
    generator = _generator(seed, count)
    shapes = {"inner": (count, width, width), "outer": (count, outputs, width)}
    tensors = {"router.weight": initial_gate(count, width, 0, classifier, seed)}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = (DEVIATION * torch.randn(shape, generator=generator)).to(classifier)
        tensors[f"{name}.bias"] = classifier.new_zeros(shape[:2])
    return tensors
