"""Validation of the values in architectures, most of which come from files. Errors start with the value's location."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from foundation.errors import UserError, did_you_mean, shortened
from search_spaces.numbers import fraction


class ArchitectureError(UserError, ValueError):
    """A value or file is not a valid architecture; the message starts with the location of the mistake."""


@contextmanager
def in_place(place: str) -> Iterator[None]:
    """Prefix the messages of errors with the place of the value in which they occur."""
    try:
        yield
    except ArchitectureError as error:
        raise ArchitectureError(f"{place}.{error}") from None


def check_integer(place: str, value: object, largest: int, smallest: int = 1) -> None:
    """Raise ArchitectureError unless the value is an integer from `smallest` to `largest`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArchitectureError(f"{place}: must be a whole number, not {shortened(value)}")
    if not smallest <= value <= largest:
        raise ArchitectureError(f"{place}: must be from {smallest} to {largest:,}, not {shortened(value)}")


def as_fraction(place: str, value: object) -> Fraction:
    """`value` as an exact number, see `search_spaces.numbers.fraction`."""
    try:
        return fraction(value)
    except ValueError as error:
        raise ArchitectureError(f"{place}: {error}") from None


def as_object(place: str, value: object, required: Sequence[str], optional: Sequence[str] = ()) -> Mapping[str, Any]:
    """`value`, checked to be a JSON object with all required keys and no unknown ones. Raises ArchitectureError."""
    if not isinstance(value, dict):
        raise ArchitectureError(f"{place}: must be a JSON object, not {shortened(value)}")
    known = (*required, *optional)
    for key in value:
        if key not in known:
            suggestion = did_you_mean(str(key), known) or f"; known are {', '.join(known)}"
            raise ArchitectureError(f"{place}: unknown key {shortened(key)}{suggestion}")
    for key in required:
        if key not in value:
            raise ArchitectureError(f"{place}: the key {key!r} is missing")
    return value


def without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` for `json.loads` that rejects repeated keys, of which json would keep the last."""
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ArchitectureError(f"the key {shortened(repeated)} occurs twice in one object")
    return result


def refuse_constant(name: str) -> None:
    """A `parse_constant` for `json.loads` that rejects NaN and infinities."""
    raise ArchitectureError(f"{name} is not a number in JSON")
