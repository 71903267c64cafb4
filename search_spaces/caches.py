"""Caches of limited size."""

from collections.abc import Callable
from typing import TypeVar

# The number of entries at which a cache is emptied.
CACHED = 16_384

Key = TypeVar("Key")
Value = TypeVar("Value")


def cached(cache: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """The cached value of a key; calls `make` if there is none."""
    if key not in cache:
        if len(cache) >= CACHED:
            cache.clear()
        cache[key] = make()
    return cache[key]
