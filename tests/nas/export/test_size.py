"""The closed form of a file's size against files that are written."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from safetensors.torch import save_file

from nas.onnx.int8 import quantize
from nas.onnx.model import export_onnx
from search_spaces import FFN, Architecture, Base
from search_spaces.cost import CLASSIFIER
from search_spaces.layer import FULL, Attention, Embedding, Experts, Layer, PredictionHead
from search_spaces.size import size_limit
from supernet.build import build
from tests import requirements
from tests.nas.export.test_ordinary import HALF, NO_FFN
from tests.tiny import shaken

WIDE = Base(depth=3, width=96, heads=4, inner=384, vocabulary=4000, positions=64)
LAYERS = {
    "whole": [Layer(Attention(4), FFN())] * 3,
    "parts": [
        Layer(Attention(1), FFN(stack=2, expansion=HALF)),
        Layer(Attention(0), FFN()),
        Layer(Attention(0), NO_FFN),
    ],
    "experts": [Layer(Attention(4), FFN(expansion=Fraction(1, 4), experts=Experts(4)))] * 3,
}


# Of which most parameters are those of experts, in the head, too.
NARROW = replace(WIDE, depth=1, inner=96, vocabulary=2000)
EXPERTS = Layer(Attention(4, 4), FFN(stack=3, expansion=Fraction(1, 4), experts=Experts(4)))


@pytest.mark.parametrize("kind", [*LAYERS, "experts everywhere"])
def test_estimates_are_within_two_percent(kind: str, tmp_path: Path) -> None:
    requirements.module("onnxruntime", "onnx")
    embedding = Embedding(48) if kind == "parts" else FULL
    if kind == "experts everywhere":
        architecture = Architecture(NARROW, (EXPERTS,), PredictionHead(8))
    else:
        architecture = Architecture(WIDE, tuple(LAYERS[kind]), embedding=embedding)
    # Equal tensors, such as new biases, would be stored once.
    model = shaken(build(architecture, num_labels=3)).eval()
    files = {runtime: tmp_path / runtime for runtime in ("torch", "onnx", "onnx-int8")}
    save_file(model.state_dict(), files["torch"])
    export_onnx(model, files["onnx"])
    quantize(files["onnx"], files["onnx-int8"])
    for runtime, file in files.items():
        expected = size_limit(1, runtime, 3, CLASSIFIER).total(architecture)
        assert expected == pytest.approx(file.stat().st_size, rel=0.02), runtime
    assert files["onnx-int8"].stat().st_size < 0.4 * files["onnx"].stat().st_size
