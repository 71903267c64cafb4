"""Cuts a narrower or deeper supernet out of a warmed-up one, as EfficientBERT-TINY and EfficientBERT++ inherit from the
supernet of EfficientBERT (Dong et al., 2021, section 4.3).
"""

from collections.abc import Mapping
from dataclasses import asdict

from torch import Tensor

from distill.encoders.family import family_of_weights
from search_spaces.base import Base

# The fields of a base that may become smaller. All others but the depth stay the same.
SMALLER = ("width", "inner", "embedding")
# The parts of MobileBERT's trigram embedding: the next, this and the previous word.
TRIGRAM = 3

_TRIGRAM_MAP = "embeddings.embedding_transformation.weight"


class CutError(ValueError):
    """A supernet cannot be cut to a base."""


def check_cut(source: Base, base: Base) -> None:
    """Raise CutError, which names the field, if a supernet on `source` cannot be cut to `base`."""
    given, wanted = asdict(source), asdict(base)
    for name, value in wanted.items():
        there = given[name]
        if name == "depth":
            if value % there:
                raise CutError(f"depth is {value}, which is not a multiple of the {there} layers that are cut from")
        elif name not in SMALLER:
            if value != there:
                raise CutError(f"{name} is {value!r}, and {there!r} where it is cut from: make them the same")
        elif (value is None) != (there is None):
            kinds = {True: "an ordinary embedding", False: "a factorized one"}
            raise CutError(f"embedding: {kinds[value is None]} cannot be cut from {kinds[there is None]}")
        elif value is not None and value > there:
            raise CutError(f"{name} is {value}, more than the {there} channels that are cut from")


def cut(weights: Mapping[str, Tensor], source: Base, base: Base, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a supernet on `base`: the leading channels of all dimensions of a supernet on `source`, each of
    whose layers becomes as many successive layers as `base` is times as deep.

    As in EfficientBERT's released code, the leading channels of queries, keys and values are those of the concatenated
    heads, regardless of where one head ends: the first of 12 heads of 30 channels has 30 of the 45 channels of the
    first head of 45, the second one the other 15 and the first 15 of the next. In a trigram embedding, the vector of
    each of the three words keeps its leading channels.

    Args:
        weights: the state dict of the supernet on `source`.
        like: the state dict of a model on `base` with the same number of blocks and the same head, of which only names
            and shapes count.

    Returns:
        A complete state dict of copies.

    Raises:
        CutError: see `check_cut`.
    """
    check_cut(source, base)
    repeats = base.depth // source.depth

    family = family_of_weights(weights)

    def origin(name: str) -> str:
        parts = family.split(name)
        return f"{parts[0]}{parts[1] // repeats}.{parts[2]}" if parts else name

    return {name: _leading(weights[origin(name)], tensor, name.endswith(_TRIGRAM_MAP)) for name, tensor in like.items()}


def cut_projections(projections: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The leading channels of projections of an objective, as EfficientBERT's released code cuts `fit_dense`.

    Args:
        like: the state dict of the objective for the narrower student. Its projections that are larger than those
            there, or that are not there, are left out.
    """
    return {
        name: _leading(projections[name], tensor)
        for name, tensor in like.items()
        if name in projections
        and all(size <= there for size, there in zip(tensor.shape, projections[name].shape, strict=True))
    }


def _leading(tensor: Tensor, like: Tensor, trigram: bool = False) -> Tensor:
    """A copy of the leading entries of every dimension that make a tensor of the shape of `like`."""
    if trigram:
        words = tensor.unflatten(1, (TRIGRAM, -1))
        return words[: like.shape[0], :, : like.shape[1] // TRIGRAM].flatten(1).clone()
    return tensor[tuple(slice(size) for size in like.shape)].clone()
