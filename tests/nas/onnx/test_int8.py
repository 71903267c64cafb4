"""int8 models: all products are quantised, those of experts too, and the logits stay close; also without some parts."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nas.onnx.int8 import quantize
from nas.onnx.model import OnnxModel, export_onnx, padded_batch, verify
from search_spaces import FFN, Architecture, Embedding
from supernet.build import build
from tests import requirements
from tests.distill.encoders.student.test_experts_in_model import make
from tests.nas.export.test_ordinary import HALF, NO_FFN, of_shape
from tests.tiny import BASE, shaken

requirements.module("onnxruntime", "onnx")


@pytest.mark.slow
def test_experts(tmp_path: Path) -> None:
    model = make("everything")
    # Products with weights; those of queries and keys, and of attentions and values, have none.
    assert check(model, tmp_path, without_weights=2 * model.config.num_hidden_layers) > 60


# Which layers a student can have besides whole ones, as heads and FFNs, and how many products with weights they have.
LAYERS = {
    "everything": ([(2, FFN(expansion=HALF)), (0, FFN()), (3, NO_FFN), (0, NO_FFN)], 6 + 2 + 4),
    "no heads": ([(0, FFN()), (0, NO_FFN)], 2),
    "nothing": ([(0, NO_FFN)] * 2, 0),
}


def test_a_word_embedding_of_lower_rank(tmp_path: Path) -> None:
    """Its map is in int8, too, beside six maps of the layer, the pooler and the classifier."""
    architecture = replace(Architecture.uniform(replace(BASE, depth=1)), embedding=Embedding(8))
    model = shaken(build(architecture, num_labels=3)).eval()
    assert check(model, tmp_path, without_weights=2) == 1 + 6 + 2
    assert verify(model, OnnxModel(tmp_path / "float.onnx")) < 1e-5


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("everything", "bert"),
        pytest.param("everything", "roberta", marks=pytest.mark.slow),
        pytest.param("no heads", "bert", marks=pytest.mark.slow),
        pytest.param("nothing", "bert", marks=pytest.mark.slow),
    ],
)
def test_layers_without_some_parts(kind: str, form: str, tmp_path: Path) -> None:
    layers, products = LAYERS[kind]
    _, model = of_shape(layers, form)
    # Beside the layers, the pooler and the classifier.
    assert check(model, tmp_path, without_weights=2 * sum(heads > 0 for heads, _ in layers)) == products + 2
    assert verify(model, OnnxModel(tmp_path / "float.onnx")) < 1e-5


def check(model: Any, folder: Path, without_weights: int) -> int:
    """Compare a model in int8 with itself in float32; returns the number of products with weights."""
    import onnx

    paths = [folder / "float.onnx", folder / "int8.onnx"]
    export_onnx(model, paths[0])
    quantize(*paths)
    counts = [Counter(node.op_type for node in onnx.load(path).graph.node) for path in paths]
    weighted = counts[0]["Gemm"] + counts[0]["MatMul"] - without_weights
    assert counts[1]["MatMulInteger"] == weighted
    batch = padded_batch(model.config, 4, 9)
    expected, actual = (OnnxModel(path).logits(batch) for path in paths)
    difference = (actual - expected).abs().max()
    assert 0 < difference < 0.1 * expected.abs().max()
    return weighted
