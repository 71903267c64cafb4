"""What every evaluation of a candidate returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from distill.tasks import metrics
from distill.training.evaluation import Load, mean_loads

# Intermediate scores and the loads of experts are measured on this many examples of the search split.
INTERMEDIATE_ROWS = 500


@dataclass(frozen=True)
class Score:
    """The result of an evaluation.

    Attributes:
        value: the task's first metric on the search split or, for candidates without training, possibly the fidelity to
            its teacher; with several tasks the mean over them.
        standard_error: the standard error of `value`.
        parts: further scores of the candidate by name, such as that of its inherited weights.
        loads: for each router, how its experts shared the tokens of the first examples of the search split.
        rows: the contributions of the examples of the search split to `value`, of shape (N,) or (N, K); None if it is
            a mean over tasks.
    """

    value: float
    standard_error: float
    parts: dict[str, float]
    loads: tuple[Load, ...] = ()
    rows: np.ndarray | None = field(default=None, compare=False, repr=False)


def mean_score(scores: Mapping[str, metrics.Score], loads: Sequence[Sequence[Load]]) -> Score:
    """The mean of the scores of a candidate on several tasks, which all have the same weight."""
    value = fmean(score.value for score in scores.values())
    error = sum(score.standard_error**2 for score in scores.values()) ** 0.5 / len(scores)
    return Score(value, error, {name: score.value for name, score in scores.items()}, mean_loads(loads))
