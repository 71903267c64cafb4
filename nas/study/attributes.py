"""The names of the attributes of studies and trials."""

from collections.abc import Callable
from typing import Any

from optuna import Study
from optuna.trial import FrozenTrial

# The architecture as JSON; the fingerprint of the function that it computes; whether it is within the budget.
ARCHITECTURE, FUNCTION, WITHIN_BUDGET = "architecture", "function", "within_budget"
# The sampler or baseline that the architecture is from, and if a sampler proposed it, the choices of the space that
# lead to it.
ORIGIN, CHOICES = "origin", "choices"
# The seed of the training if it is not the study's, and the number of the attempt after workers were lost.
SEED, ATTEMPT = "seed", "attempt"
# The number of the earlier trial of which this one is a duplicate; why there is no score; the step at which the trial
# was pruned.
DUPLICATE_OF, FAILURE, RUNG = "duplicate_of", "failure", "rung"
# How the experts shared the tokens.
EXPERT_LOAD = "expert_load"
# The contributions of the rows to the score, in the study `confirmation` (`nas.study.contributions`).
ROWS = "rows"
# Attributes of studies: the names of the objectives; and, if candidates are scored on a single task, its name and the
# teacher's score on the same rows, `{"task", "score"}`.
GOALS, TEACHER = "goals", "teacher"
# Optuna's system attribute for the constraints of a trial, each of which is satisfied if it is at most 0. Optuna 5 also
# has named constraints (`Trial.set_constraint`), but its dashboard does not show them.
CONSTRAINTS = "constraints"
# What only programs read is kept among Optuna's system attributes, because the dashboard lists all user attributes of a
# trial, and long ones make its page several screens wide.
FOR_PROGRAMS = frozenset({ARCHITECTURE, FUNCTION, CHOICES, ROWS, EXPERT_LOAD, CONSTRAINTS})
# Attributes that are costs, and how to write their values; latencies are in microseconds, sizes in bytes.
COSTS: dict[str, Callable[[float], str]] = {
    "params": lambda value: f"{value:,.0f} parameters",
    "macs": lambda value: f"{value:,.0f} MACs",
    "latency": lambda value: f"{value / 1000:.2f} ms",
    "size": lambda value: f"{value / 10**6:,.2f} MB",
}
# The prefix of the names of parameters of layers. The names of a space's choices begin with "layer1/" and so on.
PREFIX = "layer "


def attribute(trial: FrozenTrial, name: str, default: Any = None) -> Any:
    """An attribute of a trial, wherever it is kept."""
    return (trial.system_attrs if name in FOR_PROGRAMS else trial.user_attrs).get(name, default)


def goals_of(study: Study) -> list[str]:
    """The names of a study's goals, what candidates are compared by first."""
    goals: list[str] = study.user_attrs.get(GOALS, ["score"])
    return goals


def metric_of(trial: FrozenTrial, task: str) -> float:
    """The metric of a task of a trial with a score, which may have been compared by its fidelity."""
    metric: float = trial.user_attrs.get(score_attribute(task), trial.values[0])
    return metric


def score_attribute(name: str) -> str:
    """The name of the attribute for one of several scores of a trial. The prefix keeps it apart from other attributes,
    because a task may have any name.
    """
    return f"score/{name}"
