"""Which of a teacher's attention heads a model has, and where the same heads are in another model."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

# The number of a head of which the configuration does not say which of the teacher's it is.
UNKNOWN = -1
# The heads of a layer in their order, by their numbers among the teacher's.
Heads = tuple[int, ...]


def heads_of(config: Any) -> tuple[Heads, ...]:
    """The heads of every layer of a model with this configuration. Without `kept_heads`, a layer with all heads has
    them in order, and those of a layer with fewer are `UNKNOWN`.
    """
    if (kept := getattr(config, "kept_heads", None)) is not None:
        return tuple(map(tuple, kept))
    everything = tuple(range(config.num_attention_heads))
    counts = getattr(config, "attention_heads", None) or [len(everything)] * config.num_hidden_layers
    return tuple(everything if count == len(everything) else (UNKNOWN,) * count for count in counts)


def has_all_heads_in_order(config: Any) -> bool:
    """Whether every layer has all heads, in order."""
    return set(heads_of(config)) == {tuple(range(config.num_attention_heads))}


def counterparts(student: Heads, teacher: Heads) -> list[int] | None:
    """The places of the student's heads in a layer of the teacher; None if these are all of that layer, in its order.

    Raises:
        ValueError: the teacher's layer lacks one of the student's heads.
    """
    return None if student == teacher else [teacher.index(head) for head in student]


def select_heads(states_BTD: Tensor, places: Sequence[int], heads: int) -> Tensor:
    """The channels of the heads at these places, in this order, of states that consist of `heads` heads."""
    return states_BTD.unflatten(-1, (heads, -1))[..., list(places), :].flatten(-2)
