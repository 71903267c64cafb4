"""What both grammars of graphs have in common: the choices of a trial, and how formulas are put together and read."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from search_spaces.operations import UNARY

PLAIN, NONE = "plain", "none"


class Trial(Protocol):
    """The part of `optuna.Trial` that a space needs."""

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str: ...

    def suggest_float(self, name: str, low: float, high: float) -> float: ...


@dataclass(frozen=True)
class RandomTrial:
    """A trial whose choices are random: `draw(name, choices, rng)` makes one, and numbers are uniform."""

    draw: Callable[[str, Sequence[str], random.Random], str]
    rng: random.Random

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return self.draw(name, choices, self.rng)

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return self.rng.uniform(low, high)


def activations() -> tuple[str, ...]:
    """What may be applied to a value: nothing, or an activation."""
    return (PLAIN, *UNARY)


def activate(activation: str, value: str) -> str:
    """The formula of a value after one of `activations`."""
    return value if activation == PLAIN else f"{activation}({value})"


def activation_of(formula: str, value: str) -> str | None:
    """The activation that turns `value` into `formula`; None if there is none."""
    return next((activation for activation in activations() if activate(activation, value) == formula), None)


def outermost(formula: str) -> str:
    """The outermost operation of a formula."""
    return formula.partition("(")[0]


def is_activated(formula: str) -> bool:
    """Whether the outermost operation is an activation."""
    return outermost(formula) in UNARY


def without_activation(formula: str) -> tuple[str, str]:
    """The outermost activation, or PLAIN, and the formula that it is applied to."""
    op = outermost(formula)
    return (op, formula[len(op) + 1 : -1]) if op in UNARY else (PLAIN, formula)


def arguments(formula: str) -> tuple[str, str]:
    """The two arguments of a formula that is a binary operation."""
    depth = 0
    start = formula.index("(") + 1
    for index in range(start, len(formula)):
        depth += (formula[index] == "(") - (formula[index] == ")")
        if formula[index] == "," and not depth:
            return formula[start:index], formula[index + 1 : -1]
    raise ValueError(f"{formula} has one argument")
