"""`python -m nas.export` of ordinary checkpoints of transformers: the teacher's own ONNX and int8 files."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForTokenClassification,
    BertModel,
)

from distill.tasks.types import EMBEDDINGS, TASK_TYPES
from distill.training.evaluation import split_batches
from distill.training.sentences import copy_modules
from distill.training.teacher import load_model
from nas.config.load import load_config
from nas.export.command import main
from nas.onnx.model import VECTORS, OnnxModel, padded_batch
from nas.preparation.workspace import Workspace
from search_spaces import Architecture
from supernet.build import base_of_teacher, build
from tests import requirements
from tests.commands import Refused, run
from tests.nas.rows import study
from tests.nas.tiny_study import TinyStudy
from tests.sentences import become_sentence_encoder
from tests.tiny import SIZES, bert, saved, shaken

requirements.module("onnxruntime", "onnx")

KINDS: dict[str, Any] = {
    "sentences": lambda: bert(),
    "shared layers": lambda: AlbertForSequenceClassification(AlbertConfig(**SIZES, embedding_size=8)),
    "tags": lambda: BertForTokenClassification(BertConfig(**SIZES, num_labels=3)),
    "questions": lambda: BertForQuestionAnswering(BertConfig(**SIZES)),
    "words": lambda: BertForMaskedLM(BertConfig(**SIZES)),
}
QUICK = ("--tokens", 8, "--rounds", 2, "--batches", 1, "--threads", 1)


def sentence_encoder(folder: Path, pooler: bool, head: str | None = None) -> Path:
    return become_sentence_encoder(saved(BertModel(BertConfig(**SIZES), add_pooling_layer=pooler), folder), head)


@pytest.mark.parametrize(
    "kind", ["sentences", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "sentences")]
)
@torch.no_grad()
def test_every_head(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = shaken(KINDS[kind](), scale=0.05).eval()
    folder, out = saved(model, tmp_path / "teacher"), tmp_path / "out"
    assert run(main, folder, "--int8", "--out", out, *QUICK) == 0
    shown = capsys.readouterr().out
    assert "teacher   ONNX int8" in shown and "student" not in shown and "no scores: " in shown
    batch = padded_batch(model.config, 4, 9)
    expected, mask_BT = model(**batch), batch["attention_mask"].bool()
    for file, tolerance in (("model", 1e-5), ("model_int8", 0.1)):
        onnx = OnnxModel(out / "onnx" / f"{file}.onnx")
        for output, actual in zip(onnx.session.get_outputs(), onnx.run(batch), strict=True):
            real = mask_BT if actual.shape[:2] == mask_BT.shape else torch.ones(len(actual), dtype=torch.bool)
            wanted = expected[output.name][real]
            torch.testing.assert_close(actual[real], wanted, rtol=0, atol=tolerance * float(wanted.abs().max()))
    stored, copied = (load_file(each / "model.safetensors") for each in (folder, out))
    assert stored.keys() == copied.keys() and all(torch.equal(stored[name], copied[name]) for name in stored)
    assert not list(out.glob("*.py"))
    card = ModelCard.load(out / "README.md")
    assert model.config.model_type in card.data.tags and "neural-architecture-search" not in card.data.tags
    assert "trust_remote_code" not in card.text and "## Architecture" not in card.text
    assert "random weights" not in card.text and "`onnx/model_int8.onnx`" in card.text
    timings = json.loads((out / "latency.json").read_text())["timings"]
    assert {timing["model"] for timing in timings} == {"teacher"}


@pytest.mark.parametrize(("pooler", "head"), [(True, None), (False, "BertForMaskedLM")])
@torch.no_grad()
def test_a_sentence_encoder(pooler: bool, head: str | None, tmp_path: Path) -> None:
    folder, out = sentence_encoder(tmp_path / "encoder", pooler, head), tmp_path / "out"
    assert run(main, folder, "--onnx", "--out", out, "--skip-latency") == 0
    model = AutoModel.from_pretrained(folder).eval()
    batch = padded_batch(model.config, 4, 9)
    mask_BT1 = batch["attention_mask"][..., None]
    mean_BD = (model(**batch).last_hidden_state * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1)
    onnx = OnnxModel(out / "onnx" / "model.onnx")
    assert [output.name for output in onnx.session.get_outputs()] == [VECTORS]
    torch.testing.assert_close(onnx.run(batch)[0], mean_BD, rtol=1e-4, atol=1e-5)
    assert load_file(out / "model.safetensors").keys() == load_file(folder / "model.safetensors").keys()
    card = (out / "README.md").read_text()
    assert "SentenceTransformer(" in card and f"outputs `{VECTORS}`" in card and (out / "modules.json").exists()


@pytest.mark.slow
def test_a_student_of_a_sentence_encoder_beside_its_teacher(tmp_path: Path) -> None:
    """The teacher has no head, and pools as the student does."""
    teacher, folder, out = sentence_encoder(tmp_path / "encoder", True), tmp_path / "student", tmp_path / "out"
    template = load_model(str(teacher), (), EMBEDDINGS, new_head=False).config
    architecture = Architecture.uniform(*base_of_teacher(template), expansion=Fraction(1, 2))
    saved(build(architecture, TASK_TYPES[EMBEDDINGS], template=template), folder)
    copy_modules(str(teacher), folder)
    architecture.save(folder / "architecture.json")
    rows = {"train": "a.tsv", "dev": "b.tsv", "text": "text", "embeddings": True}
    config = load_config("compress-embeddings", {"teacher": str(teacher), "tasks": ["mine"], "rows": {"mine": rows}})
    (folder / "config.toml").write_text(config.to_toml())
    assert run(main, folder, "--onnx", "--out", out, *QUICK) == 0
    timings = json.loads((out / "latency.json").read_text())["timings"]
    keys = {(timing["model"], timing["form"]) for timing in timings}
    assert keys == {(model, form) for model in ("teacher", "student") for form in ("torch", "ONNX")}


@torch.no_grad()
def test_scores(
    workspace: Workspace, tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a fine-tuned teacher on the rows of a preset, counted from the predictions of the files."""
    teacher, out = workspace.folders.teacher, tmp_path / "out"
    assert run(main, teacher, "--int8", "--preset", tiny_study.preset, "--out", out, "--skip-latency") == 0
    shown = capsys.readouterr().out
    batches = split_batches(workspace.folders.rows("dev"), 0)
    labels = torch.cat([batch["labels"] for batch in batches])
    for name in ("onnx/model.onnx", "onnx/model_int8.onnx"):
        onnx = OnnxModel(out / name)
        right = torch.cat([onnx.logits(batch) for batch in batches]).argmax(dim=-1) == labels
        assert f"{name}: accuracy {right.double().mean():.4f} ± " in shown
    card = (out / "README.md").read_text()
    assert "against float32 ONNX, paired" in card and str(tiny_study.root) not in card


def test_mistakes(tiny_study: TinyStudy, workspace: Workspace, tmp_path: Path, refused: Refused) -> None:
    out = ["--skip-latency", "--out", tmp_path / "out"]
    teacher, plain = workspace.folders.teacher, saved(BertModel(BertConfig(**SIZES)), tmp_path / "plain")
    rows = study(tiny_study, tmp_path / "rows", "regression")
    tags = study(tiny_study, tmp_path / "rows", "tagging")
    for words, message in (
        ([plain], "has the architecture 'BertModel'; give a model with a trained head (...ForSequenceClassification, "),
        ([teacher, "--as", "bert"], "--as bert: the model is an ordinary bert checkpoint already: leave out --as"),
        ([teacher, "--task", "sst2"], "name the rows for the cost of --int8, which is not measured"),
        ([teacher, "--int8", "--skip-scores", "--preset", "demo"], "which is not measured"),
        ([teacher, "--int8", "--data", "glue"], "--data is the folder of the files of a --task: add --task"),
        ([teacher, "--int8", "--task", "sst3"], "unknown task 'sst3'"),
        ([teacher, "--int8", "--preset", "word_order"], "unknown preset 'word_order'"),
        ([teacher, "--int8", "--preset", rows], "has no trained head for this task: fine-tune it first"),
        ([teacher, "--int8", "--preset", tags], "has the classes numpy, python, torch; the task's are O, B-BEE, B-DEE"),
    ):
        assert message in refused(main, *words, *out)
    assert not list((tmp_path / "out").iterdir())
