"""What both grammars of graphs have in common: the choices of a trial, and how formulas are put together and read."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from search_spaces.operations import BINARY, UNARY

PLAIN, NONE = "plain", "none"
# The name of a segment's input among what its arguments are made of.
OWN = "own"


class GraphTrial(Protocol):
    """The part of `optuna.Trial` that a grammar needs."""

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str: ...


class Trial(GraphTrial, Protocol):
    """The part of `optuna.Trial` that a space needs."""

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


class NotSpelledError(Exception):
    """A grammar has no choices for a formula."""


@dataclass
class Reader:
    """A trial that makes the choices that lead to a given formula, if there are any, and collects them in `made`.

    After the prefix, the name of a parameter has the segment and the way from its result to one of its arguments, such
    as `mid/left/right`.

    Attributes:
        prefix: what the names of all parameters start with.
        segments: the formula of each segment's result.
        leaves: for each segment the formulas that its arguments can be made of, by their names in choices.
    """

    prefix: str
    segments: Mapping[str, str]
    leaves: Mapping[str, Mapping[str, str]]
    made: dict[str, str] = field(default_factory=dict)

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        segment, *steps = name.removeprefix(f"{self.prefix}/").split("/")
        part, leaves = self.segments[segment], self.leaves[segment]
        while steps and steps[0] in ("left", "right"):
            part = arguments(without_activation(part)[1])[steps.pop(0) == "right"]
        chosen, inner = without_activation(part)
        if steps and steps[-1] == "op":
            if outermost(inner) in BINARY:
                chosen = outermost(inner)
            elif chosen not in choices:
                chosen = NONE
        elif set(choices) <= leaves.keys():
            chosen = _first_leaf(part, {choice: leaves[choice] for choice in choices})
        if chosen not in choices:
            raise NotSpelledError
        self.made[name] = chosen
        return chosen


def _first_leaf(formula: str, leaves: Mapping[str, str]) -> str:
    """The name of the leaf with which a tree of binary operations begins, activated or not."""
    while True:
        for name, leaf in leaves.items():
            if activation_of(formula, leaf) is not None:
                return name
        inner = without_activation(formula)[1]
        if outermost(inner) not in BINARY:
            raise NotSpelledError
        formula = arguments(inner)[0]
