"""Candidates that are trained for other numbers of steps than a search's, and scored on other rows."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel

from distill.training.evaluation import EvalSet
from foundation.files import scratch_folder
from nas.evaluation.trained import TrainedEvaluator
from nas.onnx.int8 import quantize
from nas.onnx.model import OnnxModel, export_onnx
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


def in_int8(model: PreTrainedModel, dev: EvalSet) -> tuple[Mapping[str, np.ndarray], int]:
    """The contributions of the rows to the metrics of the model's int8 file, and the file's bytes; the model moves to
    the processor.
    """
    batches = dev.batches()
    with scratch_folder() as folder:
        export_onnx(model.cpu().eval(), folder / "model.onnx")
        quantize(folder / "model.onnx", folder / "int8.onnx")
        int8 = OnnxModel(folder / "int8.onnx")
        logits = [int8.logits(batch) for batch in batches]
        return dev.contributions_of(logits, batches), (folder / "int8.onnx").stat().st_size
