"""The scores of predictions."""

from distill.tasks.metrics import Rows, Score
from distill.tasks.task import Task, contributions, scores_of


def score(task: Task, predictions: Rows, references: Rows) -> dict[str, Score]:
    """All metrics of a task, of predictions and references as `contributions` takes them."""
    return scores_of(task, contributions(task, predictions, references))
