"""Bases that differ in the number of experts of the attention and of the head. A search may choose these numbers, which
hold for a whole architecture: MiniMoE's "x,y experts" have x experts in every attention.

The *ways* of a base are the number of architectures on it that can be chosen. A *position* is a number from 0 to 1
that the inverse of a distribution function maps to a choice (`search_spaces.counting.invert`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log

from search_spaces.base import Base
from search_spaces.counting import invert, position_of

# The fields of a base that a search may choose.
EXPERT_FIELDS = ("attention_experts", "head_experts")


def variants(base: Base, attention_experts: tuple[int, ...], head_experts: tuple[int, ...]) -> tuple[Base, ...]:
    """The base with every combination of these numbers, those with the fewest experts first; without numbers, those of
    the base itself. Raises ArchitectureError for a number out of range.
    """
    return tuple(
        replace(base, attention_experts=of_attention, head_experts=of_head)
        for of_attention in sorted(attention_experts or (base.attention_experts,))
        for of_head in sorted(head_experts or (base.head_experts,))
    )


def expert_choices(bases: Sequence[Base]) -> dict[str, tuple[int, ...]]:
    """For each of `EXPERT_FIELDS` the numbers that occur in these bases, in ascending order."""
    return {name: tuple(sorted({getattr(base, name) for base in bases})) for name in EXPERT_FIELDS}


def draw(bases: Sequence[Base], ways: Sequence[int], position: Callable[[str], float]) -> Base:
    """One of the bases, with a probability proportional to its ways if the positions are uniform. The number of experts
    in attention is drawn first, then the number in the head conditional on it.

    Args:
        ways: for each base the number of architectures on it that can be chosen.
        position: the position for the name of a field of which there are several choices.
    """
    chosen: dict[str, int] = {}
    for name, values in expert_choices(bases).items():
        if len(values) > 1:
            chosen[name] = values[invert(_ways_of(name, values, bases, ways, chosen), position(name))]
    return next(base for base in bases if _has(base, chosen))


def positions(bases: Sequence[Base], ways: Sequence[int], base: Base) -> dict[str, float]:
    """The positions for which `draw` returns this base."""
    chosen: dict[str, int] = {}
    result = {}
    for name, values in expert_choices(bases).items():
        if len(values) > 1:
            value = getattr(base, name)
            result[name] = position_of(_ways_of(name, values, bases, ways, chosen), values.index(value))
            chosen[name] = value
    return result


def _ways_of(
    name: str, values: Sequence[int], bases: Sequence[Base], ways: Sequence[int], chosen: Mapping[str, int]
) -> list[int]:
    """For each value of the field `name`, the ways of the bases that have it and what is chosen already."""
    result = dict.fromkeys(values, 0)
    for base, number in zip(bases, ways, strict=True):
        if _has(base, chosen):
            result[getattr(base, name)] += number
    return list(result.values())


def _has(base: Base, chosen: Mapping[str, int]) -> bool:
    return all(getattr(base, name) == value for name, value in chosen.items())


def are_variants(base: Base, other: Base) -> bool:
    """Whether two bases differ in nothing but the number of experts of attention and head."""
    return replace(other, **{name: getattr(base, name) for name in EXPERT_FIELDS}) == base


def differing(base: Base, other: Base) -> int:
    """In how many of the numbers two variants differ."""
    return sum(getattr(base, name) != getattr(other, name) for name in EXPERT_FIELDS)


def distance(base: Base, other: Base) -> float:
    """The difference between two variants: the sum of the |log ratios| of their numbers of experts."""
    return sum(abs(log(getattr(base, name) / getattr(other, name))) for name in EXPERT_FIELDS)


def experts_in_words(base: Base) -> str:
    """The experts of attention and head in words, such as "4 experts in every attention"; empty if there are none."""
    places = {"attention_experts": "every attention", "head_experts": "the head"}
    found = ((getattr(base, name), place) for name, place in places.items())
    return ", ".join(f"{count} experts in {place}" for count, place in found if count > 1)
