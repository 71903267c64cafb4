"""Whether a teacher that is kept as it is makes sense: its head is of the task, and it is right about the rows."""

import math

import numpy as np
from accelerate import Accelerator
from scipy.optimize import linear_sum_assignment
from transformers import PreTrainedModel

from distill.tasks.types.base import MULTI_LABEL_PROBLEM
from distill.training.evaluation import EvalSet
from distill.training.teacher import TeacherError, load_config
from foundation.errors import warn_once

# The number of rows that are looked at.
ROWS = 1000
# With fewer rows, a teacher that always predicts one class is no reason for a warning.
FEW = 50
# A difference of so many standard errors is no coincidence.
SURE = 3.5


def check_kept(source: str, model: PreTrainedModel, eval_set: EvalSet, accelerator: Accelerator) -> None:
    """Refuse a teacher that was trained for something else, and warn of one that is no better than a constant.

    Args:
        source: the folder or name of the teacher, whose configuration says for what it was trained.
        model: the teacher, with the classes of the task.

    Raises:
        TeacherError: its head is of another kind; it scores below chance, or far below what it would with its classes
            in another order, which the message gives.
    """
    config, task = load_config(source, students=True), eval_set.task
    if task.type.pool is not None:
        return  # its vectors are the labels, whatever head its encoder was trained with
    heads = [name for name in config.architectures or () if "For" in name]
    problem = config.problem_type
    if heads and not any(name.endswith(task.type.suffix) for name in heads):
        raise TeacherError(f"the model {source!r} is a {heads[0]}; the task needs a ...{task.type.suffix}")
    if task.type.multi_label and problem is None:
        raise TeacherError(
            f"the model {source!r} does not say that it predicts any number of classes: set problem_type to "
            f'"{MULTI_LABEL_PROBLEM}" in its config.json if it does, or fine-tune it on the task first'
        )
    multi_label = problem == MULTI_LABEL_PROBLEM
    if multi_label != task.type.multi_label or (problem == "regression" and task.type.classes):
        kind = problem.replace("_", " ")
        raise TeacherError(
            f"the model {source!r} was trained for {kind}; the task is {task.task_type}: fine-tune it on the task first"
        )
    if task.type.multi_label:
        return  # each class has an output of its own name
    assert task.type.references is not None
    predictions = eval_set.predictions(model, accelerator, ROWS)
    references = task.type.references(eval_set.split)[: len(predictions)]
    if task.type.classes:
        _check_classes(source, task.labels, np.hstack(predictions), np.hstack(references))
    elif task.type.distributions is None and len(predictions) > 1:
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = float(np.corrcoef(np.asarray(predictions, float), np.asarray(references, float))[0, 1])
        if math.isnan(correlation):
            warn_once(f"the teacher {source!r} predicts the same number for every row: is it fine-tuned on this task?")
        if correlation < -SURE / math.sqrt(len(predictions)):
            raise TeacherError(
                f"the numbers of the model {source!r} have the correlation {correlation:.2f} with the labels: it was "
                "trained for something else"
            )


def _check_classes(source: str, labels: tuple[str, ...], predicted: np.ndarray, expected: np.ndarray) -> None:
    """`check_kept` of a classifier with these labels, from its predicted classes and those of the rows (N,)."""
    known = predicted >= 0
    predicted, expected, count = predicted[known], expected[known], max(1, int(known.sum()))
    confusion_CC = np.zeros((len(labels), len(labels)))
    np.add.at(confusion_CC, (expected, predicted), 1)
    # By class, the output that would be right most often; classes without a reason to move stay.
    _, outputs_C = linear_sum_assignment(confusion_CC + 1e-6 * np.eye(len(labels)), maximize=True)
    moved = outputs_C != np.arange(len(labels))
    now, then = confusion_CC.diagonal(), confusion_CC[np.arange(len(labels)), outputs_C]
    lost, won, right = now[moved].sum(), then[moved].sum(), now.sum() / count
    chance = 1 / len(labels)
    if won - lost > SURE * math.sqrt(max(1, won + lost)):
        better = ", ".join(labels[number] for number in np.argsort(outputs_C))
        raise TeacherError(
            f"the model {source!r} is right about {right:.1%} with its classes in the order {', '.join(labels)}, and "
            f"would be about {then.sum() / count:.1%} in the order {better}: rename the classes, or those in id2label "
            "of its config.json; or fine-tune it on the task"
        )
    if chance - right > SURE * math.sqrt(chance * (1 - chance) / count):
        raise TeacherError(
            f"the model {source!r} is right about {right:.1%}, and chance is {chance:.1%}: fine-tune it on the task"
        )
    most = int(confusion_CC.sum(axis=1).argmax())
    if count >= FEW and now.sum() <= confusion_CC[most].sum():
        warn_once(
            f"the teacher {source!r} is right about {right:.1%} of {count} rows, no more than always saying "
            f"{labels[most]!r}: is it fine-tuned on this task?"
        )
