"""The evaluation of a candidate without training: its inherited weights are scored on one or several tasks."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import fmean

from distill.tasks import metrics
from distill.training.evaluation import Load, mean_loads
from nas.evaluate import INTERMEDIATE_ROWS, Evaluator, ReportScore, Score, ignore_score
from nas.preparation.workspace import Workspace
from search_spaces.architecture import Architecture


class UntrainedEvaluator:
    """Scores candidates as they inherit their weights, for each task from a supernet of its own; each worker process
    creates one evaluator and keeps it.
    """

    def __init__(self, workspace: Workspace, device: str = "auto") -> None:
        self.of_tasks = {of_task.config.task: Evaluator(of_task, device) for of_task in workspace.untrained}
        self.rows = workspace.untrained_rows

    def evaluate(
        self,
        architecture: Architecture,
        seed: int = 0,
        rungs: Sequence[Fraction] = (),
        report: ReportScore = ignore_score,
    ) -> Score:
        """Score a candidate by the mean over the tasks of each task's first metric on the first rows of its search
        split. Seed and rungs make no difference, and no intermediate scores are reported.

        Raises:
            distill.training.loop.Diverged: a logit is not finite.
            supernet.compensation.ridge.CompensationError: the candidate's activations are not finite.
        """
        scores: dict[str, metrics.Score] = {}
        loads: list[Sequence[Load]] = []
        for task, evaluator in self.of_tasks.items():
            student = evaluator.student(architecture)
            scores[task] = evaluator.score(student, self.rows)
            if architecture.has_experts:
                loads.append(evaluator.loads(student, evaluator.search_rows, INTERMEDIATE_ROWS))
        return mean_score(scores, loads)


def mean_score(scores: Mapping[str, metrics.Score], loads: Sequence[Sequence[Load]]) -> Score:
    """The mean of the scores of a candidate on several tasks, which all have the same weight."""
    value = fmean(score.value for score in scores.values())
    error = sum(score.standard_error**2 for score in scores.values()) ** 0.5 / len(scores)
    return Score(value, error, {name: score.value for name, score in scores.items()}, mean_loads(loads))
