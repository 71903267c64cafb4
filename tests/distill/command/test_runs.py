"""`python -m distill`, as a user runs it: what it trains, measures and leaves."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from distill.__main__ import main
from distill.tasks.types import REGRESSION
from tests.distill.command.shared import Distil, environment, weights


def test_as_a_program(command: Callable[..., list[str]], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "distill", *command()], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"student, before +0\.\d{4} ± 0\.\d{4} +0\.01\d\d M", done.stdout)
    assert done.stdout.endswith(f"wrote {tmp_path / 'out'}\n")
    files = {file.name for file in (tmp_path / "out").iterdir()}
    own = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert files == own | {"metrics.json", "options.json"}
    student = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert (student.config.num_hidden_layers, student.config.id2label) == (2, {0: "no", 1: "yes"})


def test_what_is_reported(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    found = distil("--set", "temperature=3", "--set", "alpha=0.25", student="uniform:2")
    assert (found["dev_rows"], found["processes"], found["settings"]) == (20, 1, {"temperature": 3.0, "alpha": 0.25})
    assert list(found["models"]) == ["teacher", "student, before", "student"]
    assert found["models"]["student"].keys() == {"params", "accuracy"}
    assert found["options"]["student"] == "uniform:2"
    stored = json.loads((tmp_path / "out" / "options.json").read_text())
    assert {Path(path).name for path in stored.pop("contents")} == {"train.tsv", "dev.tsv", "teacher"}
    assert found["options"] == stored
    assert sum(tensor.numel() for tensor in weights(tmp_path / "out").values()) == found["models"]["student"]["params"]
    assert not torch.equal(
        weights(tmp_path / "out")["bert.encoder.layer.0.output.dense.weight"],
        weights(fixtures / "teacher")["bert.encoder.layer.1.output.dense.weight"],
    )


def test_json_and_quiet(command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("--json", steps=2)) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert "student: kd" in printed.err
    assert main(command("--quiet", steps=2, out=tmp_path / "other")) == 0
    printed = capsys.readouterr()
    assert "accuracy" in printed.out and "student: kd" not in printed.out + printed.err


@pytest.mark.parametrize("objective", ["codir", "theseus"])
def test_the_same_seed_gives_the_same_student(objective: str, distil: Distil, tmp_path: Path) -> None:
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        distil(objective=objective, out=tmp_path / out, seed=seed)
    first, again, other = (weights(tmp_path / out) for out in "abc")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_pairs_and_another_checkpoint(distil: Distil, fixtures: Path) -> None:
    found = distil("--pair", "other", student=fixtures / "small", objective="tinybert")
    assert found["models"]["student"]["accuracy"]["value"] > 0


def test_without_a_teacher(distil: Distil, fixtures: Path) -> None:
    found = distil(teacher=None, student=fixtures / "headless", objective="none")
    assert list(found["models"]) == ["student, before", "student"]


def test_regression(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    found = distil(
        "--regression",
        teacher=fixtures / "number",
        train=fixtures / "train-numbers.tsv",
        dev=fixtures / "dev-numbers.tsv",
    )
    assert found["models"]["student"].keys() == {"params", "spearmanr", "pearson"}
    assert AutoConfig.from_pretrained(tmp_path / "out").problem_type == REGRESSION


def test_tagging(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "data" / f"{split}.conll").write_text((fixtures / f"{split}.conll").read_text())
    found = distil(task="conll", data=tmp_path / "data", teacher=fixtures / "headless", finetune_teacher=2)
    assert found["models"]["student"].keys() == {"params", "f1", "accuracy"}
    assert AutoModelForTokenClassification.from_pretrained(tmp_path / "out").config.id2label == {0: "O", 1: "B-X"}


def test_questions(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    found = distil(task="squad", data=fixtures, teacher=fixtures / "questions", objective="distilbert")
    assert found["models"]["student"].keys() == {"params", "f1", "exact_match"}
    assert AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out").config.num_hidden_layers == 2


def test_text(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    """The student has no head, since nothing taught one."""
    for out in ("a", "b"):
        found = distil(corpus=fixtures / "text.txt", objective="minilm", out=tmp_path / out)
        assert found["models"]["student"].keys() == {"params"}
    first, again = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not [name for name in first if "classifier" in name]
    assert sum(tensor.numel() for tensor in first.values()) == found["models"]["student"]["params"]
    assert AutoModel.from_pretrained(tmp_path / "a").config.num_hidden_layers == 2
    assert list(distil(student=tmp_path / "a")["models"]) == ["teacher", "student, before", "student"]


def test_masked_words(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    found = distil(
        "--masked-lm",
        corpus=fixtures / "text.txt",
        teacher=fixtures / "words",
        objective="distilbert",
        finetune_teacher=2,
    )
    assert found["models"]["student"].keys() == {"params"}
    student = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert student.cls.predictions.decoder.weight is student.bert.embeddings.word_embeddings.weight
    fine, coarse = weights(tmp_path / "out" / "teacher"), weights(fixtures / "words")
    assert not torch.equal(fine["cls.predictions.bias"], coarse["cls.predictions.bias"])


def test_assistants_and_tensorboard(distil: Distil, tmp_path: Path) -> None:
    found = distil(
        "--assistant", "first:3", "--assistant", "first:2", student="first:1", tensorboard=tmp_path / "logs", steps=2
    )
    assert list(found["models"]) == [
        "teacher",
        *(f"assistant {n}{when}" for n in (1, 2) for when in (", before", "")),
        "student, before",
        "student",
    ]
    layers = [AutoConfig.from_pretrained(tmp_path / "out" / f"assistant-{n}").num_hidden_layers for n in (1, 2)]
    assert layers == [3, 2]
    logs = {file.parent.name for file in (tmp_path / "logs").rglob("events.out.*") if file.stat().st_size}
    assert logs == {"assistant-1", "assistant-2", "student"}
