"""Dynamic int8 quantization of an ONNX model, and the score that it costs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.training.evaluation import EvalSet
from distill.training.measure import scores
from foundation.files import scratch_folder
from nas.onnx.model import OnnxModel, quiet


def quantize(source: Path, target: Path) -> None:
    """Write an ONNX model with int8 weights, one scale for each output channel. Activations are quantized while the
    model runs, with a scale for each tensor, so no calibration is needed.

    Weights have seven bits: processors without instructions for products of int8 (VNNI) add two products in 16 bits,
    which overflow with eight.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with scratch_folder() as folder, quiet():
        prepared = folder / "prepared.onnx"
        # Folds constants and infers shapes, so that the weights of experts are recognized as such, too.
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantize_dynamic(prepared, target, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)


def scores_of_models(dev: EvalSet, models: Mapping[str, OnnxModel], reference: str) -> dict[str, dict[str, Any]]:
    """For each model and metric the value, its standard error, and its paired difference to that of the model named
    `reference`.
    """
    batches = dev.batches()
    contributions = {
        name: dev.contributions_of([model.logits(batch) for batch in batches], batches)
        for name, model in models.items()
    }
    return scores(dev.task, contributions, reference)
