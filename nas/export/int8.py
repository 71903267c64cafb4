"""Dynamic int8 quantisation of an ONNX model, and the score that it costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distill.files import scratch_folder
from distill.tasks.encoding import Encoded
from distill.tasks.splits import AnySplit
from distill.tasks.task import Task
from distill.training.evaluation import evaluate_logits, split_batches
from distill.training.progress import ProgressCallback
from nas.config.schema import StudyConfig
from nas.export.onnx import OnnxModel, quiet
from nas.final.measurements import compared
from nas.preparation.context import preparation_context
from nas.preparation.data import TaskFolders
from nas.preparation.teacher import prepare_data


def quantize(source: Path, target: Path) -> None:
    """Write an ONNX model with int8 weights, one scale for each output channel. Activations are quantised while the
    model runs, with a scale for each tensor, so no calibration is needed.

    Weights have seven bits: processors without instructions for products of int8 (VNNI) add two products in 16 bits,
    which overflow with eight.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with scratch_folder() as folder, quiet():
        prepared = folder / "prepared.onnx"
        # Folds constants and infers shapes, so that the weights of experts are recognised as such, too.
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantize_dynamic(prepared, target, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)


@dataclass(frozen=True)
class DevRows:
    """The dev split of a checkpoint's task."""

    task: Task
    rows: Encoded
    split: AnySplit
    pad_id: int

    @classmethod
    def prepare(cls, config: StudyConfig, on_progress: ProgressCallback) -> "DevRows":
        """Read and encode the split, or find it in the cache.

        Raises:
            UserError: the rows cannot be read.
        """
        context = preparation_context(config, "cpu", on_progress)
        folders = TaskFolders(prepare_data(context), Path())
        return cls(folders.task, folders.rows("dev"), folders.split("dev"), context.tokenizer.pad_token_id)

    def contributions(self, model: OnnxModel) -> dict[str, np.ndarray]:
        """The contributions of all rows to the task's metrics; see `distill.training.evaluation.evaluate_rows`."""
        batches = split_batches(self.rows, self.pad_id)
        logits = [model.logits(batch) for _, batch in batches]
        return evaluate_logits(logits, [chosen for chosen, _ in batches], self.rows, self.split, self.task)

    def scores(self, models: Mapping[str, OnnxModel], reference: str) -> dict[str, dict[str, Any]]:
        """For each model and metric the value, its standard error, and its paired difference to that of the model
        named `reference`.
        """
        return compared(self.task, {name: self.contributions(model) for name, model in models.items()}, reference)
