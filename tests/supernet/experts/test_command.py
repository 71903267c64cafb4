"""python -m supernet.experts as a user runs it, on a small BERT and small files."""

import json
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from distill.training.layout import ARCHITECTURE_FILE
from distill.training.loop import train
from distill.training.recipe import Recipe
from search_spaces import GELU, Architecture, Experts, FFNGraph
from supernet.build import build
from supernet.experts.command import main
from tests.commands import Refused
from tests.supernet.files import write_rows
from tests.tiny import BASE, CLASSES, bert, saved

COMMON = ["--max-length", "16", "--batch-size", "4", "--importance-batches", "2"]


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    saved(bert(labels=2, **CLASSES), folder / "bert")
    write_rows(folder)
    return folder


def command(fixtures: Path, checkpoint: str, out: str, *options: str) -> list[str]:
    rows = ["--train", str(fixtures / "train.tsv"), "--dev", str(fixtures / "dev.tsv"), "--device", "cpu"]
    return [str(fixtures / checkpoint), "--out", str(fixtures / out), *rows, *COMMON, *options]


def row_of(model: str, printed: str) -> str:
    """The row of a model in the printed table; empty if there is none."""
    return next((line for line in printed.splitlines() if re.match(rf" +{model} +\d\.\d{{4}} ± ", line)), "")


def test_split_distil_prune_and_load_as_a_stranger(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--experts", "4", "--routing", "token_gate", "--steps", "3"]
    assert main(command(fixtures, "bert", "mixture", *options)) == 0
    printed = capsys.readouterr().out
    assert row_of("mixture", printed) and "layer 2 ffn:" in printed
    report = json.loads((fixtures / "mixture" / "metrics.json").read_text())
    assert set(report["models"]) == {"teacher", "mixture, before", "mixture"} and report["dev_rows"] == 12
    mixture, dense = report["models"]["mixture, before"], report["models"]["teacher"]
    assert mixture["params_active"] < dense["params"] < mixture["params"] and mixture["macs"] < dense["macs"]
    assert [round(sum(load["shares"]), 9) for load in mixture["expert_load"]] == [1, 1]
    model = AutoModelForSequenceClassification.from_pretrained(fixtures / "mixture", trust_remote_code=True)
    assert model.config.id2label == CLASSES["id2label"]
    assert sum(parameter.numel() for parameter in model.parameters()) == mixture["params"]
    process = subprocess.run(
        [sys.executable, "-m", "supernet.experts", *command(fixtures, "mixture", "pruned", "--fuse", "3")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert row_of("mixture", process.stdout) and row_of("fused", process.stdout)
    smaller = Architecture.load(fixtures / "pruned" / "architecture.json")
    assert any(genes.experts.count < 4 for genes in smaller.ffns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give --experts N"),
        (["--experts", "4", "--drop", "1/4"], "give --experts N"),
        (["--experts", "4", "--width", "40", "--shared", "10"], "= 19 channels each, not 40"),
        (["--experts", "4", "--width", "60"], "width: must be from 1 to 48 channels, not 60"),
        (["--experts", "4", "--shared", "13"], "shared: must be from 0 to 12 channels, not 13"),
        (["--experts", "0"], "experts.count: must be from 1 to 64, not 0"),
        (["--experts", "4", "--top-k", "5"], "experts.top_k: 5 is more than experts.count (4)"),
        (["--experts", "4", "--routing", "sentence_gate", "--capacity", "5/4"], "experts.capacity"),
        (["--experts", "4", "--task", "word_order"], "--train cannot be combined with --task word_order: leave one of"),
        (["--experts", "4", "--importance-batches", "-1"], "--importance-batches: must be at least 0, not -1"),
        (
            ["--experts", "4", "--warmup-ratio", "2"],
            "--warmup-ratio: must be a fraction of the steps, from 0 to 1, not",
        ),
        (["--experts", "4", "--dropout", "1"], "--dropout: must be at least 0 and below 1, not 1.0"),
        (["--experts", "4", "--balance", "-1"], "--balance: must be a finite number of at least 0, not -1.0"),
        (["--experts", "4", "--distill", "inf"], "--distill: must be a finite number of at least 0, not inf"),
        (["--drop", "1/4"], "has no architecture.json"),
        (["--experts", "4", "--head-experts", "0"], "head.experts: must be from 1 to 64, not 0"),
        (["--experts", "4", "--part", "head"], "--part head: says what --drop and --fuse prune"),
        *((["--drop=" + value], "--drop") for value in ("0", "-1", "x", "1/0", "1e9")),
    ],
)
def test_mistakes_are_one_line(fixtures: Path, refused: Refused, options: list[str], message: str) -> None:
    assert message in refused(main, *command(fixtures, "bert", "never", *options))
    assert not (fixtures / "never").exists()


def saved_mixture(fixtures: Path, name: str, architecture: Architecture) -> None:
    """A mixture with random weights as the command would have written it."""
    saved(build(architecture, template=bert(labels=2, **CLASSES).config), fixtures / name)
    architecture.save(fixtures / name / ARCHITECTURE_FILE)


def test_mixtures_that_cannot_be_pruned_are_refused(fixtures: Path, refused: Refused) -> None:
    graph = FFNGraph.parse("tanh(project(gelu(expand(x))))")
    gate = Experts(4, Fraction(1, 2), "token_gate")
    ends = Architecture.uniform(BASE, graph, expansion=Fraction(1, 4), experts=gate)
    none = "no feed-forward network of the model has experts"
    for name, architecture, message in (
        ("ends", ends, "it is not the last operat"),
        (
            "attention",
            Architecture.uniform(BASE, attention_experts=2),
            f"{none}; those that it has, 2 of every attenti",
        ),
        ("plain", Architecture.uniform(BASE), f"{none}\n"),
    ):
        saved_mixture(fixtures, name, architecture)
        assert message in refused(main, *command(fixtures, name, "never", "--fuse", "3"))
        assert not (fixtures / "never").exists()


def test_experts_of_attention_and_head_are_said_to_stay(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experts = Experts(4, Fraction(1, 2), "token_gate")
    whole = Architecture.uniform(BASE, GELU, 1, Fraction(1, 4), experts, attention_experts=2, head_experts=3)
    saved_mixture(fixtures, "both", whole)
    assert main(command(fixtures, "both", "smaller", "--drop", "3")) == 0
    output = capsys.readouterr().out
    assert "only the experts of feed-forward networks are removed; the 2 of every attention and 3 of the h" in output
    smaller = Architecture.load(fixtures / "smaller" / ARCHITECTURE_FILE)
    assert smaller.with_ffns(whole.ffns) == whole and any(genes.experts.count < 4 for genes in smaller.ffns)


def test_prediction_layers(fixtures: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    """A head of four is made, trained, and fused; a stranger loads it."""
    split = ["--experts", "1", "--head-experts", "4", "--steps", "2"]
    assert main(command(fixtures, "bert", "predicting", *split)) == 0
    report = json.loads((fixtures / "predicting" / "metrics.json").read_text())
    assert [load["part"] for load in report["models"]["mixture, before"]["expert_load"]] == ["head"]
    assert report["models"]["teacher"]["params"] < report["models"]["mixture"]["params"]
    capsys.readouterr()
    assert main(command(fixtures, "predicting", "predicting-less", "--fuse", "4", "--part", "head")) == 0
    assert row_of("fused", capsys.readouterr().out)
    smaller = Architecture.load(fixtures / "predicting-less" / ARCHITECTURE_FILE)
    assert smaller.head.experts == 2
    model = AutoModelForSequenceClassification.from_pretrained(fixtures / "predicting-less", trust_remote_code=True)
    assert model.classifier.inner.weight.shape[0] == model.config.head_experts == 2
    said = refused(main, *command(fixtures, "predicting-less", "never", "--fuse", "4", "--part", "head"))
    assert "the head needs at least 3 prediction layers, since 2 must remain; it has 2" in said


def test_classes_are_counted_as_the_checkpoint_does(fixtures: Path) -> None:
    """In own files too, whatever the alphabetical order: with the names exchanged, a dense model errs where it was
    right.
    """
    exchanged = {"id2label": {0: "yes", 1: "no"}, "label2id": {"yes": 0, "no": 1}}
    saved(bert(labels=2, **exchanged), fixtures / "exchanged")
    scores = []
    for name in ("bert", "exchanged"):
        assert main(command(fixtures, name, f"{name}-classes", "--experts", "4")) == 0
        report = json.loads((fixtures / f"{name}-classes" / "metrics.json").read_text())
        scores.append(report["models"]["teacher"]["accuracy"]["value"])
    assert sum(scores) == pytest.approx(1) and scores[0] != scores[1]


def test_the_recipe(fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the options say reaches the training; without them it is what it was before there were options."""
    seen = []

    def observed(model, batches, objective, recipe, **others):  # type: ignore[no-untyped-def]
        seen.append((recipe, {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}))
        return train(model, batches, objective, recipe, **others)

    monkeypatch.setattr("distill.training.distillation.train", observed)
    moebert = ["--warmup-ratio", "0", "--weight-decay", "0", "--dropout", "0.25"]
    # 24 rows in batches of 4 are 6 steps an epoch.
    for name, given in (("plain", ["--steps", "2"]), ("recipe", ["--epochs", "1.25", *moebert])):
        assert main(command(fixtures, "bert", f"recipe-{name}", "--experts", "4", *given)) == 0
    common = {"batch_size": 4, "learning_rate": 5e-5, "max_grad_norm": 1.0}
    assert seen == [
        (Recipe(steps=2, warmup_ratio=0.1, weight_decay=0.01, **common), {0.1}),
        (Recipe(steps=8, warmup_ratio=0.0, weight_decay=0.0, **common), {0.25}),
    ]
    configs = [json.loads((fixtures / f"recipe-{name}" / "config.json").read_text()) for name in ("plain", "recipe")]
    assert [config["hidden_dropout_prob"] for config in configs] == [0.1, 0.25]


def test_padding_in_the_losses(fixtures: Path) -> None:
    weights = []
    for name, given in (("ours", []), ("again", []), ("released", ["--paper-compatible"])):
        out = f"padding-{name}"
        assert main(command(fixtures, "bert", out, "--experts", "4", "--steps", "2", *given)) == 0
        weights.append(load_file(fixtures / out / "model.safetensors")["bert.encoder.layer.1.ffn.0.expand.weight"])
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_everything_random_depends_on_the_seed(fixtures: Path) -> None:
    """Tables, gates, the order of channels and the training; the same seed gives the same checkpoint."""
    options = ["--experts", "4", "--split", "random", "--attention-experts", "2"]
    tensors = []
    for name, seed in zip("abc", "334", strict=True):
        assert main(command(fixtures, "bert", f"seed-{name}", *options, "--seed", seed)) == 0
        tensors.append(load_file(fixtures / f"seed-{name}" / "model.safetensors"))
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())
    for name in ("router.table", "attention.router.weight", "ffn.0.expand.weight"):
        assert not torch.equal(*(some[f"bert.encoder.layer.1.{name}"] for some in tensors[1:])), name


def test_importance_on_all_rows(fixtures: Path) -> None:
    """Every row counts once, so the experts' channels depend neither on the seed nor on the batches."""
    weights = {}
    for few, seed, size in (("0", "3", "4"), ("0", "4", "7"), ("1", "3", "4"), ("1", "4", "4")):
        options = ["--experts", "4", "--seed", seed, "--importance-batches", few, "--batch-size", size]
        assert main(command(fixtures, "bert", f"all-{few}-{seed}", *options)) == 0
        tensors = load_file(fixtures / f"all-{few}-{seed}" / "model.safetensors")
        weights[few, seed] = tensors["bert.encoder.layer.1.ffn.0.expand.weight"]
    assert torch.equal(weights["0", "3"], weights["0", "4"])
    assert not torch.equal(weights["1", "3"], weights["1", "4"])


def test_the_scale_of_gates(fixtures: Path) -> None:
    """It is in the checkpoint's configuration and architecture, also after pruning; the weights are the same."""
    options = ["--experts", "4", "--routing", "token_gate"]
    for name, given in (("gate", []), ("plain-gate", ["--gate-scale", "probability"])):
        assert main(command(fixtures, "bert", name, *options, *given)) == 0
    relative, plain = (load_file(fixtures / name / "model.safetensors") for name in ("gate", "plain-gate"))
    assert all(torch.equal(tensor, plain[name]) for name, tensor in relative.items())
    assert json.loads((fixtures / "gate" / ARCHITECTURE_FILE).read_text())["base"]["gate_scale"] == "relative"
    assert main(command(fixtures, "plain-gate", "plain-pruned", "--fuse", "3")) == 0
    for name in ("plain-gate", "plain-pruned"):
        assert Architecture.load(fixtures / name / ARCHITECTURE_FILE).base.gate_scale == "probability"
        assert json.loads((fixtures / name / "config.json").read_text())["gate_scale"] == "probability"
