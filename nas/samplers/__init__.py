"""Samplers of architectures; every one is an `optuna.samplers.BaseSampler`."""

from collections.abc import Callable

from optuna.samplers import BaseSampler

from nas.samplers.random import RandomSampler
from nas.samplers.tpe import TPE
from search_spaces.spaces import Space

SAMPLERS: dict[str, Callable[[Space, int], BaseSampler]] = {"random": RandomSampler, "tpe": TPE}
