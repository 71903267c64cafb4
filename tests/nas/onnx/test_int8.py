"""int8 models: all products are quantised, those of experts too, and the logits stay close."""

from collections import Counter
from pathlib import Path

import pytest

from nas.onnx.int8 import quantize
from nas.onnx.model import OnnxModel, export_onnx, padded_batch
from tests import requirements
from tests.distill.encoders.student.test_experts_in_model import make

requirements.module("onnxruntime", "onnx")


@pytest.mark.slow
def test_experts(tmp_path: Path) -> None:
    import onnx

    model, paths = make("everything"), [tmp_path / "float.onnx", tmp_path / "int8.onnx"]
    export_onnx(model, paths[0])
    quantize(*paths)
    counts = [Counter(node.op_type for node in onnx.load(path).graph.node) for path in paths]
    # Products with weights; those of queries and keys, and of attentions and values, have none.
    weighted = counts[0]["Gemm"] + counts[0]["MatMul"] - 2 * model.config.num_hidden_layers
    assert weighted > 60
    assert counts[1]["MatMulInteger"] == weighted
    batch = padded_batch(model.config, 4, 9)
    expected, actual = (OnnxModel(path).logits(batch) for path in paths)
    difference = (actual - expected).abs().max()
    assert 0 < difference < 0.1 * expected.abs().max()
