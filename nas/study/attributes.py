"""What the trials of a study remember beside parameters and scores: names of attributes, and the costs and constraints
of an architecture.
"""

import json
from typing import Any

from nas.study.parameters import PREFIX
from search_spaces import cost
from search_spaces.architecture import DENSE, Architecture
from search_spaces.equivalence import function_key
from search_spaces.formula import layers_latex
from search_spaces.spaces import Space

# The architecture as JSON; the fingerprint of what it computes; whether it keeps the budget.
ARCHITECTURE, FUNCTION, IN_BUDGET = "architecture", "function", "in_box"
# The sampler or the baseline that the architecture is from, and the choices of the space that spell it if it was drawn.
ORIGIN, CHOICES = "origin", "choices"
# The seed of the training where it is not the study's, and which attempt this is after workers were lost.
SEED, ATTEMPT = "seed", "attempt"
# The number of the earlier trial that computes the same; why there is no score; the step at which it was pruned.
DUPLICATE_OF, FAILURE, RUNG = "twin", "failure", "rung"
# How experts shared the tokens.
EXPERT_LOAD = "expert_load"
# Of a study: the names of its objectives.
GOALS = "goals"
# Optuna's system attribute of a trial's constraints, each of which is satisfied if it is at most 0. Optuna 5 also knows
# named ones (`Trial.set_constraint`), which its dashboard does not show.
CONSTRAINTS = "constraints"


def score_attribute(name: str) -> str:
    """The attribute of one of the scores behind a trial's own: a task may have any name, that of a cost too."""
    return f"score/{name}"


def described(architecture: Architecture, space: Space, labels: int) -> dict[str, Any]:
    """What the attributes of a trial say of its architecture."""
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
    """By how much an architecture exceeds each bound of the budget: the fewest and the most parameters, then the
    limits; all at most 0 if it keeps the budget.
    """
    params = cost.params(architecture, space.labels, space.head)
    excess = [space.min_params - params, params - space.max_params]
    return [float(value) for value in (*excess, *(limit.total(architecture) - limit.most for limit in space.limits))]


def formula(architecture: Architecture) -> str:
    """The layers in short: stack x inner width, experts where there are any, and graph."""
    parts = []
    for genes in architecture.layers:
        size = f"{genes.stack}×{genes.inner(architecture.base)}"
        size += f" ({genes.experts})" if genes.experts != DENSE else ""
        parts.append(f"{size} {genes.graph}")
    return "; ".join(parts)


def choices_of(attributes: dict[str, Any], params: dict[str, Any]) -> dict[str, str | float]:
    """The choices of the space that spell a trial's architecture; empty where the architecture was enqueued.

    Version 0.1 wrote them as the trial's parameters, and its studies can be resumed.
    """
    if CHOICES in attributes:
        return dict(attributes[CHOICES])
    return {name: value for name, value in params.items() if not name.startswith(PREFIX)}
