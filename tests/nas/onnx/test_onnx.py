"""ONNX models compute what the torch models compute, for every operation, router and head."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distill.encoders.student.ffn import EXPORTED_OPERATIONS
from distill.tasks.types import TASK_TYPES
from nas.onnx.model import OnnxModel, export_onnx, padded_batch, verify
from search_spaces import FFN, Architecture, Experts, FFNGraph
from search_spaces.operations import BINARY, UNARY
from supernet.build import ExportError, build
from supernet.pruning import prune
from tests import requirements
from tests.commands import output_elsewhere
from tests.distill.encoders.student.test_experts_in_model import KINDS
from tests.distill.encoders.student.test_experts_in_model import make as make_experts
from tests.nas.export.test_ordinary import NO_FFN, of_shape
from tests.supernet.test_pruning import KEPT
from tests.tiny import BASE, batch, bert, inputs, shaken

requirements.module("onnxruntime", "onnx")

HALF = Fraction(1, 2)
# Runs an ONNX model with nothing but onnxruntime and numpy.
STRANGER = """
import sys
import numpy
import onnxruntime

given = dict(numpy.load(sys.argv[2]))
numpy.save(sys.argv[3], onnxruntime.InferenceSession(sys.argv[1]).run(["logits"], given)[0])
"""


def operations(mismatch: str) -> Any:
    """A model in which every operation occurs, with inputs of equal and of different widths."""
    texts = [f"project({op}(expand(x)))" for op in UNARY]
    texts += [f"{op}(x,project({op}(x,mul(expand(x),gate(x)))))" for op in BINARY]
    graphs = [FFNGraph.parse(text) for text in texts]
    used = {node.op for graph in graphs for node in graph.nodes[1:]}
    assert used == EXPORTED_OPERATIONS
    base = replace(BASE, depth=len(graphs), mismatch=mismatch, embedding=7 if mismatch == "wide" else None)
    layers = tuple(FFN(graph, 1 + number % 2, HALF) for number, graph in enumerate(graphs))
    return shaken(build(Architecture.of_ffns(base, layers), num_labels=3)).eval()


def of_head(head: str) -> Any:
    labels = {"regression": 1, "question_answering": 2}.get(head, 3)
    base = replace(BASE, depth=1)
    return shaken(build(Architecture.of_ffns(base, (FFN(expansion=HALF),)), TASK_TYPES[head], labels)).eval()


def with_experts_and_a_layer_left_out() -> Any:
    """Layers of a model with experts are called in another way."""
    experts = FFN(expansion=HALF, experts=Experts(2, routing="token_gate", shared=Fraction(1)))
    return of_shape([(4, experts), (0, NO_FFN), (2, FFN(expansion=HALF))], "bert")[1]


MODELS: dict[str, Any] = {
    "narrow": lambda: operations("narrow"),
    "wide": lambda: operations("wide"),
    "no FFN": lambda: shaken(build(Architecture.uniform(BASE, stack=0))).eval(),
    "pruned heads": lambda: prune(bert(num_hidden_layers=3), KEPT),
    "left out": lambda: of_shape([(4, FFN()), (0, NO_FFN), (2, NO_FFN)], "bert")[1],
    "left out, with experts": lambda: with_experts_and_a_layer_left_out(),
    "head of experts": lambda: shaken(build(Architecture.uniform(BASE, head_experts=3))).eval(),
    **{head: lambda head=head: of_head(head) for head in ("regression", "token_classification", "masked_lm")},
    **{kind: lambda kind=kind: make_experts(kind) for kind in KINDS},
}


@torch.no_grad()
def check(model: Any, onnx: OnnxModel) -> None:
    """Compare all outputs on sentences alone, without padding, and together, with padding."""
    longest = model.config.max_position_embeddings
    for rows, tokens in ((1, 1), (1, longest), (4, 9), (7, 2)):
        features = inputs(batch(rows, tokens, seed=rows))
        expected = model(**features)
        names = [output.name for output in onnx.session.get_outputs()]
        mask_BT = features["attention_mask"].bool()
        for name, actual in zip(names, onnx.run(features), strict=True):
            of_tokens = actual.dim() > 1 and actual.shape[:2] == mask_BT.shape and actual.shape[1] != 3
            real = mask_BT if of_tokens else torch.ones(len(actual), dtype=torch.bool)
            torch.testing.assert_close(actual[real], expected[name][real], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_operation_router_and_head(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    export_onnx(model, tmp_path / "model.onnx")
    onnx = OnnxModel(tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    check(model, onnx)
    assert verify(model, onnx) < 1e-4


def test_question_answering(tmp_path: Path) -> None:
    """Two outputs, the shape in which tasks read them, and that a difference is found."""
    model, path = of_head("question_answering"), tmp_path / "model.onnx"
    attention = model.config._attn_implementation
    export_onnx(model, path)
    assert model.config._attn_implementation == attention
    onnx = OnnxModel(path)
    assert [node.name for node in onnx.session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    assert all(node.shape == ["batch", "length"] for node in onnx.session.get_inputs())
    assert [node.name for node in onnx.session.get_outputs()] == ["start_logits", "end_logits"]
    check(model, onnx)
    assert verify(model, onnx) < 1e-5
    features = inputs(batch(4, 9))
    with torch.no_grad():
        outputs = model(**features)
        expected = torch.stack((outputs.start_logits, outputs.end_logits), dim=1)
        torch.testing.assert_close(onnx.logits(features), expected, rtol=1e-4, atol=1e-5)
        model.qa_outputs.bias[1] += 0.01
    with pytest.raises(ExportError, match=r"differs from the torch model by 0\.01 on a batch of 1 x 1 tokens"):
        verify(model, onnx)
    model.qa_outputs.bias.data[:] = torch.nan
    with pytest.raises(ExportError, match="differs from the torch model by nan"):
        verify(model, onnx)


def test_not_all_tokens_of_long_sentences_are_compared() -> None:
    model, lengths = build(Architecture.uniform(replace(BASE, depth=1, positions=3_000))).eval(), []

    class Same:
        def logits(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            lengths.append(batch["input_ids"].shape[1])
            return model(**batch).logits

    assert verify(model, Same()) == 0  # type: ignore[arg-type]
    assert lengths == [1, 8, 13, 32, 1_024]


@pytest.mark.slow
def test_it_runs_without_torch(tmp_path: Path) -> None:
    model, features = of_head("classification"), inputs(batch(4, 9))
    files = [tmp_path / name for name in ("model.onnx", "inputs.npz", "logits.npy")]
    export_onnx(model, files[0])
    np.savez(files[1], **{name: tensor.numpy() for name, tensor in features.items()})
    output_elsewhere(STRANGER, *files, folder=tmp_path, absent=("torch", "transformers"))
    with torch.no_grad():
        expected = model(**features).logits
    torch.testing.assert_close(torch.from_numpy(np.load(files[2])), expected, rtol=1e-4, atol=1e-5)


def test_batches_have_padding() -> None:
    config = build(Architecture.uniform(BASE)).config
    features = padded_batch(config, 4, 9)
    assert features["attention_mask"].sum(dim=1).tolist() == [9, 6, 3, 1]
    assert (features["input_ids"][features["attention_mask"] == 0] == config.pad_token_id).all()
    assert {tuple(tensor.shape) for tensor in features.values()} == {(4, 9)}
