"""`python -m nas.export`: what it writes, that it loads elsewhere, and what it refuses."""

import json
import os
import re
import stat
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification

from distill.tasks.encoding import load_encoded
from distill.tasks.types import TASK_TYPES
from distill.training.evaluation import split_batches
from nas.config.load import load_config
from nas.export.command import main
from nas.final.command import main as train_final
from nas.onnx.model import OnnxModel
from nas.preparation.prepare import prepare
from search_spaces import FFN, Architecture, Attention, Experts, Layer, cost
from supernet.build import base_of_teacher, build
from tests import requirements
from tests.commands import Refused, output_elsewhere, run
from tests.nas.rows import half_width, study
from tests.nas.tiny_study import TinyStudy
from tests.tiny import BASE, bert, saved

SENTENCES = ["Badofi kule moni.", "Paru."]
# Loads the folder as a stranger would, who has transformers but not this project.
STRANGER = """
import json, sys
from transformers import pipeline
from transformers.utils import logging

logging.disable_progress_bar()
folder, sentences = sys.argv[1], json.loads(sys.argv[2])
print(json.dumps(pipeline("text-classification", model=folder, trust_remote_code=True)(sentences, top_k=None)))
"""


@pytest.fixture(scope="module")
def checkpoint(study_cache: None, searched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained winner of the tiny study."""
    out = tmp_path_factory.mktemp("export") / "final"
    given = [searched / "architecture.json", "--out", out, "--device", "cpu", "--skip-base"]
    assert run(train_final, *given) == 0
    return out


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """A checkpoint with experts, and without the files of a study."""
    architecture = Architecture.uniform(BASE, expansion=Fraction(1, 4), experts=Experts(4, routing="token_gate"))
    return saved(build(architecture, num_labels=2), tmp_path / "mixture")


@pytest.fixture(scope="module")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its export, with nothing but what is always there."""
    out = tmp_path_factory.mktemp("exported") / "my-student"
    assert run(main, checkpoint, "--out", out, "--skip-latency", "--quiet") == 0
    return out


def test_the_folder(checkpoint: Path, exported: Path) -> None:
    out = exported
    names = {path.name for path in checkpoint.iterdir()} | {"README.md"}
    assert {path.name for path in out.iterdir()} == names
    mask = os.umask(0)
    os.umask(mask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o666 & ~mask}
    config = json.loads((out / "config.json").read_text())
    assert list(config["id2label"].values()) == ["numpy", "python", "torch"]
    assert {name for name in config["auto_map"] if name.startswith("AutoModelFor")} == {
        "AutoModelForMaskedLM",
        "AutoModelForQuestionAnswering",
        "AutoModelForSequenceClassification",
        "AutoModelForTokenClassification",
    }


def test_the_card(checkpoint: Path, exported: Path) -> None:
    """Its header is read by the hub's own library; its figures are those of metrics.json."""
    card = ModelCard.load(exported / "README.md")
    facts = json.loads((checkpoint / "metrics.json").read_text())
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-classification")
    assert card.data.language == "en"
    assert "license" not in card.data.to_dict() and "base_model" not in card.data.to_dict()
    (result,) = card.data.eval_results
    score = facts["models"]["student"]["accuracy"]
    assert (result.metric_type, result.dataset_name, result.dataset_split) == ("accuracy", "library", "dev")
    assert result.metric_value == round(score["value"], 4)
    assert f"{score['value']:.4f} ± {score['standard_error']:.4f}" in card.text
    difference = score["difference"]
    assert f"{difference['value']:+.4f} ± {difference['standard_error']:.4f}" in card.text
    architecture = Architecture.load(checkpoint / "architecture.json")
    for number, ffn in enumerate(architecture.ffns, start=1):
        inner = ffn.inner(architecture.base)
        formula = f"`{ffn.formula}`"
        assert f"| {number} | {ffn.stack} | {inner} | {formula} |" in card.text
    assert "`numpy`, `python`, `torch`" in card.text
    assert "ffn-train-final architecture.json --preset config.toml --seed 0 --out final" in card.text
    assert "ffn-export final --out my-student --skip-latency" in card.text
    # Nothing about the machine's folders.
    assert str(exported.parent) not in card.content and str(checkpoint.parent) not in card.content


@pytest.mark.slow
def test_a_pipeline_elsewhere(checkpoint: Path, exported: Path, tmp_path: Path) -> None:
    output = output_elsewhere(STRANGER, exported, json.dumps(SENTENCES), folder=tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, trust_remote_code=True).eval()
    features = AutoTokenizer.from_pretrained(checkpoint)(SENTENCES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        probabilities_NC = model(**features).logits.softmax(dim=-1)
    for scores, probabilities_C in zip(json.loads(output), probabilities_NC, strict=True):
        found = {entry["label"]: entry["score"] for entry in scores}
        expected = dict(zip(["numpy", "python", "torch"], probabilities_C.tolist(), strict=True))
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_onnx_int8_and_latency(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_study: TinyStudy
) -> None:
    requirements.module("onnxruntime", "onnx")
    out = tmp_path / "my-student"
    assert run(main, checkpoint, "--int8", "--out", out, "--tokens", 10, "--threads", 1, "--json") == 0
    printed = capsys.readouterr()
    shown, results = printed.err, json.loads(printed.out)
    assert results["folder"] == str(out)
    assert results["latency"] == json.loads((out / "latency.json").read_text())
    assert list(results["scores"]) == ["onnx/model.onnx", "onnx/model_int8.onnx"]
    assert {path.name for path in (out / "onnx").iterdir()} == {"model.onnx", "model_int8.onnx"}
    found = json.loads((out / "latency.json").read_text())
    assert found["tokens"] == 10 and found["machine"]["threads"] == 1
    keys = [(timing["model"], timing["form"], timing["batch"]) for timing in found["timings"]]
    assert set(keys) == {
        (model, form, size)
        for model in ("teacher", "student")
        for form in ("torch", "ONNX", "ONNX int8")
        for size in (1, 32)
    }
    architecture = Architecture.load(checkpoint / "architecture.json")
    teacher = Architecture.uniform(architecture.base)
    assert found["macs"] == {"student": cost.macs(architecture, 10, 3), "teacher": cost.macs(teacher, 10, 3)}
    # The accuracies that it prints, counted from the predictions of the files.
    workspace = prepare(load_config(str(checkpoint / "config.toml")), "cpu")
    batches = split_batches(load_encoded(workspace.folders.data / "dev.npz"), 0)
    labels = torch.cat([features["labels"] for features in batches])
    right = {}
    for name in ("model.onnx", "model_int8.onnx"):
        onnx = OnnxModel(out / "onnx" / name)
        right[name] = torch.cat([onnx.logits(features) for features in batches]).argmax(dim=-1) == labels
        assert f"onnx/{name}: accuracy {right[name].double().mean():.4f} ± " in shown
    facts = json.loads((checkpoint / "metrics.json").read_text())
    assert right["model.onnx"].double().mean() == pytest.approx(facts["models"]["student"]["accuracy"]["value"])
    difference = right["model_int8.onnx"].double() - right["model.onnx"].double()
    assert f"{difference.mean():+.4f} ± " in shown
    assert f"{difference.mean():+.4f} ± " in (out / "README.md").read_text()
    assert "## Latency" in (out / "README.md").read_text()


def test_as_bert(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_study: TinyStudy) -> None:
    """A uniform student of a study can be one."""
    given = [half_width(tiny_study.preset, tmp_path), "--preset", tiny_study.preset, "--out", tmp_path / "final"]
    assert run(train_final, *given, "--skip-base") == 0
    out = tmp_path / "bert"
    assert run(main, tmp_path / "final", "--as", "bert", "--out", out, "--skip-latency") == 0
    shown = capsys.readouterr().out
    assert "as an ordinary bert model: the same parameters" in shown and f"wrote {out}" in shown.replace("\n", "")
    assert not list(out.glob("*.py"))
    loaded = AutoModelForSequenceClassification.from_pretrained(out).eval()
    assert type(loaded) is BertForSequenceClassification
    features = AutoTokenizer.from_pretrained(out)(SENTENCES, padding=True, return_tensors="pt")
    student = AutoModelForSequenceClassification.from_pretrained(tmp_path / "final", trust_remote_code=True).eval()
    with torch.inference_mode():
        torch.testing.assert_close(loaded(**features).logits, student(**features).logits, rtol=1e-5, atol=1e-5)
    card = (out / "README.md").read_text()
    assert "trust_remote_code" not in card.split("## Architecture")[0]


@pytest.mark.parametrize(
    ("kind", "pipeline", "names"),
    [
        ("tagging", "token-classification", ["O", "B-BEE", "B-DEE"]),
        ("questions", "question-answering", ["start", "end"]),
        ("regression", "text-classification", ["score"]),
        ("multi_label", "text-classification", ["b", "d"]),
    ],
)
def test_other_kinds(kind: str, pipeline: str, names: list[str], tiny_study: TinyStudy, tmp_path: Path) -> None:
    trained(tiny_study, tmp_path, kind)
    assert run(main, tmp_path / "final", "--skip-latency") == 0
    out = tmp_path / "final-export"
    assert list(json.loads((out / "config.json").read_text())["id2label"].values()) == names
    card = ModelCard.load(out / "README.md")
    assert card.data.pipeline_tag == pipeline
    assert ("top_k=None" in card.text) == ("from the probability 0.5 on" in card.text) == (kind == "multi_label")
    facts = json.loads((out / "metrics.json").read_text())
    assert [result.metric_type for result in card.data.eval_results] == facts["metrics"]
    assert "language" not in card.data.to_dict()


def trained(tiny_study: TinyStudy, folder: Path, kind: str) -> None:
    """Train a uniform student on a small data set of this kind, and leave it in the folder's subfolder final."""
    preset = study(tiny_study, folder / "study", kind)
    words = [half_width(preset, folder / "study"), "--preset", preset, "--out", folder / "final", "--device", "cpu"]
    assert run(train_final, *words, "--skip-base") == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tagging", "questions", "regression", "multi_label"])
def test_scores_of_other_kinds(
    kind: str, tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ONNX model has the scores that the torch model had after the training, and int8 has differences to them."""
    requirements.module("onnxruntime", "onnx")
    trained(tiny_study, tmp_path, kind)
    capsys.readouterr()
    assert run(main, tmp_path / "final", "--int8", "--skip-latency") == 0
    text = capsys.readouterr().out
    facts = json.loads((tmp_path / "final" / "metrics.json").read_text())
    for metric in facts["metrics"]:
        shown = re.search(rf"^onnx/model.onnx: {metric} ([\d.]+) ± [\d.]+; {facts['dev_rows']} dev rows$", text, re.M)
        # Rounding may exchange the ranks of two almost equal predictions.
        assert shown is not None
        assert float(shown[1]) == pytest.approx(facts["models"]["student"][metric]["value"], abs=0.01)
        assert re.search(rf"^onnx/model_int8.onnx: {metric} .*, [+-][\d.]+ ± [\d.]+ .*\(paired\); ", text, re.M)


def test_a_mixture_without_a_study(mixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(main, mixture, "--labels", "bad,good", "--out", out, "--tokens", 8) == 0
    assert "student" in capsys.readouterr().out
    assert json.loads((out / "config.json").read_text())["id2label"] == {"0": "bad", "1": "good"}
    card = (out / "README.md").read_text()
    assert "4, token_gate, top 1" in card and "## Results" not in card and "## Export" in card
    found = json.loads((out / "latency.json").read_text())
    assert {timing["model"] for timing in found["timings"]} == {"student"} and found["predicted_speedup"] is None


def test_masked_words(tmp_path: Path) -> None:
    """The output embedding is the word embedding, which the file has once."""
    model = build(Architecture.uniform(BASE), TASK_TYPES["masked_lm"])
    folder = saved(model, tmp_path / "words")
    assert run(main, folder, "--out", tmp_path / "out", "--skip-latency") == 0
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.pipeline_tag == "fill-mask" and "AutoModelForMaskedLM.from_pretrained" in card.text
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    torch.testing.assert_close(loaded["cls.predictions.bias"], model.cls.predictions.bias.data)


def test_fewer_heads_and_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The card of a student, and of its ordinary form, which costs more."""
    layers = [(2, FFN()), (0, FFN(stack=0)), (0, FFN(expansion=Fraction(1, 2)))]
    architecture = Architecture(BASE, tuple(Layer(Attention(heads), ffn) for heads, ffn in layers))
    folder = saved(build(architecture, num_labels=2), tmp_path / "pruned")
    architecture.save(folder / "architecture.json")
    for out, options in (("student", ()), ("bert", ("--as", "bert"))):
        words = ["--out", tmp_path / out, "--tokens", 8, "--rounds", 2, "--batches", 1, "--threads", 1]
        assert run(main, folder, *options, *words) == 0
        card = (tmp_path / out / "README.md").read_text()
        assert "An encoder of 2 layers, 24 wide, whose attention heads and feed-forward networks" in card
        assert "| layer | heads | blocks | inner width | FFN |" in card
        assert "| 2 |  |  |  | `left out` |" in card and "| 3 | 0 | 1 | 24 | `project(gelu(expand(x)))` |" in card
    shown = capsys.readouterr().out
    assert re.search(r"latency: Sentences of 8 tokens without padding on .+, 1 thread, measured in turns", shown)
    assert "more) are padding, which is computed like all others: 3,564 give every attention 4 heads and 1,176" in shown
    counted = [json.loads((tmp_path / out / "latency.json").read_text())["macs"] for out in ("student", "bert")]
    whole = Architecture.uniform(replace(BASE, depth=2))
    assert counted == [{"student": cost.macs(given, 8, 2)} for given in (architecture, whole)]


def test_models_that_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folders that config.toml names as base and as teacher: a line says what is left out for that."""
    requirements.module("onnxruntime", "onnx")
    teacher, gone, model = tmp_path / "teacher", tmp_path / "gone", bert()
    model.save_pretrained(teacher)
    architecture = Architecture.uniform(*base_of_teacher(model.config), expansion=Fraction(1, 2))
    folder = saved(build(architecture, num_labels=2), tmp_path / "student")
    architecture.save(folder / "architecture.json")
    missing = f"no model at '{gone}': there is no such folder"
    for names, forms, said in (
        ({"teacher": str(teacher), "base": str(gone)}, (), [f"the latency table lacks the base model: {missing}"]),
        (
            {"teacher": str(gone), "base": str(gone)},
            ("--int8",),
            ["no scores, as the rows", f"the latency table lacks the teacher and the base model: {missing}"],
        ),
    ):
        (folder / "config.toml").write_text(load_config("demo-ffn", names).to_toml())
        out, options = tmp_path / f"out{len(forms)}", ("--rounds", 2, "--batches", 1, "--threads", 1)
        assert run(main, folder, "--out", out, *forms, *options) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert all(line in shown for line in said) and shown.count(missing) == len(said)


def test_mistakes(mixture: Path, tmp_path: Path, refused: Refused) -> None:
    out = ["--out", tmp_path / "out", "--skip-latency"]
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").touch()
    for words, message in (
        ([], "required: CHECKPOINT"),
        ([tmp_path / "missing", *out], "missing is not a folder: give that of a student or of a trained teacher"),
        ([tmp_path / "empty", *out], "the folder has no config.json; it has nothing"),
        ([mixture, "--labels", "good", *out], "--labels: the model needs 2 distinct names, not good"),
        ([mixture, "--labels", "a,a", *out], "2 distinct names, not a, a"),
        (
            [mixture, "--as", "bert", *out],
            "--as bert: this student cannot be an ordinary checkpoint: layer 1 has experts",
        ),
        ([mixture, "--as", "gpt", *out], "invalid choice: 'gpt'"),
        ([mixture, "--tokens", "0", *out], "--tokens: must be a whole number of at least 1, not '0'"),
        ([mixture, "--tokens", "21", *out], "--tokens: the model reads at most 20 tokens, not 21"),
        ([mixture, "--rounds", "1", *out], "--rounds: must be a whole number of at least 2"),
        ([mixture, "--threads", "one", *out], "--threads: must be a whole number of at least 1"),
        ([mixture, "--out", tmp_path / "full"], "exists and is not empty"),
        ([mixture, "--out", tmp_path / "full" / "file"], "is not a folder"),
    ):
        assert message in refused(main, *words)
    assert not list((tmp_path / "out").iterdir())
    described = json.loads((mixture / "config.json").read_text())
    bert, no_head, unnamed = (
        json.dumps(described | changes)
        for changes in ({"model_type": "bert"}, {"architectures": ["NasBertModel"]}, {"architectures": None})
    )
    for text, message in (
        (bert, "bert.encoder.layer.0.intermediate.dense.bias is missing"),
        (
            no_head,
            "has the architecture 'NasBertModel'; give a model with a trained head (...ForSequenceClassification",
        ),
        (unnamed, "has the architecture None"),
        ("{", "cannot be read: config.json: Expecting property name"),
        ("[]", "cannot be read: config.json: Unrecognized model"),
    ):
        (mixture / "config.json").write_text(text)
        assert message in refused(main, mixture, *out)
    (mixture / "config.json").write_text(json.dumps(described))
    (mixture / "model.safetensors").write_bytes(b"no weights")
    assert "no readable weights" in refused(main, mixture, *out)
