"""The attributes and constraints of the trials of a study: their names, and how they follow from an architecture."""

import json
from typing import Any

from nas.study.parameters import PREFIX
from search_spaces import cost
from search_spaces.architecture import DENSE, Architecture
from search_spaces.equivalence import function_key
from search_spaces.formula import layers_latex
from search_spaces.spaces import Space

# The architecture as JSON; the fingerprint of the function that it computes; whether it is within the budget.
ARCHITECTURE, FUNCTION, IN_BUDGET = "architecture", "function", "in_box"
# The sampler or baseline that the architecture is from, and if a sampler proposed it, the choices of the space that
# lead to it.
ORIGIN, CHOICES = "origin", "choices"
# The seed of the training if it is not the study's, and the number of the attempt after workers were lost.
SEED, ATTEMPT = "seed", "attempt"
# The number of the earlier trial of which this one is a duplicate; why there is no score; the step at which the trial
# was pruned.
DUPLICATE_OF, FAILURE, RUNG = "twin", "failure", "rung"
# How the experts shared the tokens.
EXPERT_LOAD = "expert_load"
# An attribute of studies: the names of the objectives.
GOALS = "goals"
# Optuna's system attribute for the constraints of a trial, each of which is satisfied if it is at most 0. Optuna 5 also
# has named constraints (`Trial.set_constraint`), but its dashboard does not show them.
CONSTRAINTS = "constraints"


def score_attribute(name: str) -> str:
    """The name of the attribute for one of several scores of a trial. The prefix keeps it apart from other attributes,
    because a task may have any name.
    """
    return f"score/{name}"


def described(architecture: Architecture, space: Space, labels: int) -> dict[str, Any]:
    """The attributes of a trial that follow from its architecture."""
    return {
        ARCHITECTURE: json.dumps(architecture.to_json()),
        IN_BUDGET: space.keeps_budget(architecture),
        FUNCTION: function_key(architecture),
        "formula": formula(architecture),
        "latex": layers_latex(architecture),
        "params": cost.params(architecture, labels, space.head),
        "params_active": cost.params_active(architecture, labels, space.head),
        "macs": cost.macs(architecture, labels=labels, head=space.head),
    } | {limit.name: limit.total(architecture) for limit in space.limits}


def constraints(architecture: Architecture, space: Space) -> list[float]:
    """By how much an architecture violates each bound of the budget: the lower and the upper bound on parameters, then
    the limits. All values are at most 0 if it keeps the budget.
    """
    params = cost.params(architecture, space.labels, space.head)
    excess = [space.min_params - params, params - space.max_params]
    return [float(value) for value in (*excess, *(limit.total(architecture) - limit.most for limit in space.limits))]


def formula(architecture: Architecture) -> str:
    """The layers in short form: stack × inner width, experts if there are any, and graph."""
    parts = []
    for genes in architecture.layers:
        size = f"{genes.stack}×{genes.inner(architecture.base)}"
        size += f" ({genes.experts})" if genes.experts != DENSE else ""
        parts.append(f"{size} {genes.graph}")
    return "; ".join(parts)


def choices_of(attributes: dict[str, Any], params: dict[str, Any]) -> dict[str, str | float]:
    """The choices of the space that lead to a trial's architecture; empty if the architecture was enqueued.

    In studies of version 0.1, which can be resumed, they are the parameters of the trial.
    """
    if CHOICES in attributes:
        return dict(attributes[CHOICES])
    return {name: value for name, value in params.items() if not name.startswith(PREFIX)}
