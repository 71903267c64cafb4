"""What every evaluation of a candidate returns, and the interface of the evaluators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import fmean
from typing import Protocol

import numpy as np

from distill.tasks import metrics
from distill.training.evaluation import Load, mean_loads
from search_spaces.architecture import Architecture

# Intermediate scores and the loads of experts are measured on this many examples of the search split.
INTERMEDIATE_ROWS = 500

# Called with the number of training steps so far and the intermediate score after them.
ReportScore = Callable[[int, float], None]


def ignore_score(step: int, score: float) -> None:
    """Drop an intermediate score: the default for callers that need only the final score."""


@dataclass(frozen=True)
class Score:
    """The result of an evaluation.

    Attributes:
        value: the first metric of the task on the search split.
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


class CandidateEvaluator(Protocol):
    """Evaluates candidates; each worker process creates one evaluator and keeps it."""

    def evaluate(
        self,
        architecture: Architecture,
        seed: int,
        rungs: Sequence[Fraction] = (),
        report: ReportScore = ignore_score,
    ) -> Score:
        """Evaluate a candidate.

        Args:
            seed: seed of the order of batches and of dropout; without training it makes no difference.
            rungs: fractions of the training steps after which an intermediate score is reported.
            report: called with every intermediate score.

        Raises:
            distill.training.loop.Diverged: the loss or a logit is not finite.
            supernet.compensation.ridge.CompensationError: the candidate's activations are not finite.
        """


def mean_score(scores: Mapping[str, metrics.Score], loads: Sequence[Sequence[Load]]) -> Score:
    """The mean of the scores of a candidate on several tasks, which all have the same weight."""
    value = fmean(score.value for score in scores.values())
    error = sum(score.standard_error**2 for score in scores.values()) ** 0.5 / len(scores)
    return Score(value, error, {name: score.value for name, score in scores.items()}, mean_loads(loads))
