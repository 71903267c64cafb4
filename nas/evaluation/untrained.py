"""The evaluation of a candidate without training: its inherited weights are scored on one or several tasks."""

from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedModel

from distill.tasks import metrics
from distill.tasks.task import scores_of
from distill.training.evaluation import Load, batch_logits, comparable_outputs, split_batches
from nas.evaluation.score import INTERMEDIATE_ROWS, Score, mean_score
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.workspace import UntrainedWorkspace
from search_spaces.architecture import Architecture

# What follows the name of a task in the name of its fidelity score.
FIDELITY = "fidelity"


class UntrainedEvaluator:
    """Scores candidates with the weights they inherit, for each task from a supernet of its own; each worker process
    creates one evaluator and keeps it.
    """

    def __init__(self, workspace: UntrainedWorkspace, device: str = "auto") -> None:
        self.of_tasks = {
            of_task.config.task: _TaskScores(TrainedEvaluator(of_task, device), workspace.rows, workspace.by_fidelity)
            for of_task in workspace.tasks
        }

    def evaluate(self, architecture: Architecture) -> Score:
        """Score a candidate by the mean over the tasks of each task's first metric, or of its fidelity to the task's
        teacher, on the first rows of the search split.

        Raises:
            distill.training.loop.Diverged, supernet.compensation.ridge.CompensationError: as for trained candidates.
        """
        scores: dict[str, metrics.Score] = {}
        further: dict[str, float] = {}
        loads: list[Sequence[Load]] = []
        for task, of_task in self.of_tasks.items():
            student = of_task.evaluator.student(architecture)
            metric, fidelity = of_task.scores(student)
            if fidelity is None:
                scores[task] = metric
            else:
                scores[f"{task} {FIDELITY}"] = fidelity
                further[task] = metric.value
            if architecture.has_experts:
                loads.append(of_task.evaluator.loads(student, of_task.evaluator.search_rows, INTERMEDIATE_ROWS))
        score = mean_score(scores, loads)
        return replace(score, parts=score.parts | further)


class _TaskScores:
    """Scores models on the first `rows` rows of the search split of one task."""

    def __init__(self, evaluator: TrainedEvaluator, rows: int | None, by_fidelity: bool) -> None:
        self.evaluator, self.task = evaluator, evaluator.task
        self.batches = split_batches(evaluator.search_rows, evaluator.supernet_config.pad_token_id, rows)
        self.sources = evaluator.search_rows.sources
        self.teacher_NC = None
        if by_fidelity:
            logits = batch_logits(evaluator.teacher(), self.batches, accelerator=evaluator.accelerator)
            self.teacher_NC = comparable_outputs(logits, self.batches, self.task.type, self.sources)

    def scores(self, model: PreTrainedModel) -> tuple[metrics.Score, metrics.Score | None]:
        """The task's first metric, and the fidelity to the teacher if candidates are scored by that."""
        evaluator, task = self.evaluator, self.task
        logits = batch_logits(model, self.batches, accelerator=evaluator.accelerator)
        rows = evaluator.search_set.contributions_of(logits, self.batches)
        metric = scores_of(task, rows)[task.metrics[0]]
        if self.teacher_NC is None:
            return metric, None
        outputs_NC = comparable_outputs(logits, self.batches, task.type, self.sources)
        return metric, metrics.fidelity(outputs_NC, self.teacher_NC)
