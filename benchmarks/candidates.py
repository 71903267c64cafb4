"""Candidates that are trained for other numbers of steps than a search's, and scored on other rows."""

from dataclasses import replace

from transformers import PreTrainedModel

from distill.training.evaluation import EvalSet
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.phases import TrainingPhase


def phases_of(evaluator: TrainedEvaluator, steps: int) -> list[TrainingPhase]:
    """The phases of the candidates' training, the last of them with so many steps."""
    *before, last = evaluator.training_phases
    return [*before, replace(last, recipe=replace(last.recipe, steps=steps))]


def dev_set(evaluator: TrainedEvaluator) -> EvalSet:
    """The whole dev split, which no search sees."""
    folders, pad_id = evaluator.workspace.folders, evaluator.supernet_config.pad_token_id
    return EvalSet(evaluator.task, folders.split("dev"), folders.rows("dev"), pad_id)


def dev_score(evaluator: TrainedEvaluator, model: PreTrainedModel) -> float:
    """The task's main metric on the dev split."""
    return dev_set(evaluator).score(model, evaluator.accelerator).value
