"""python -m supernet.experts on tasks, from small files in their official layouts."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import matthews_corrcoef
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForQuestionAnswering,
    BertTokenizerFast,
)

from distill.training.layout import ARCHITECTURE_FILE
from search_spaces import Architecture
from supernet.experts.command import main
from tests.supernet.files import text
from tests.tiny import SIZES, bert, saved, shaken

SHAPE = {**SIZES, "max_position_embeddings": 40}


@pytest.fixture(autouse=True)
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The references are computed in float32."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # so that "auto" is float32


def split_distil_and_prune(
    checkpoint: Path, out: Path, rows: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], str]:
    """Split, distill, and prune the experts; returns the measurements of all models, and what was printed."""
    common = [*rows, "--device", "cpu", "--max-length", "16", "--batch-size", "4", "--importance-batches", "2"]
    first = ["--experts", "4", "--routing", "token_gate", "--epochs", "0.5", "--learning-rate", "1e-3"]
    assert main([str(checkpoint), "--out", str(out / "mixture"), *common, *first]) == 0, capsys.readouterr().err
    assert main([str(out / "mixture"), "--out", str(out / "pruned"), *common, "--drop", "3"]) == 0
    models: dict[str, Any] = {}
    for name in ("mixture", "pruned"):
        report = json.loads((out / name / "metrics.json").read_text())
        models |= report["models"] | {"dev_rows": report["dev_rows"]}
    assert all(ffn.experts.count == 1 for ffn in Architecture.load(out / "pruned" / ARCHITECTURE_FILE).ffns)
    return models, capsys.readouterr().out


def test_cola_by_matthews(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The score is computed again, sentence by sentence, with the saved models as a stranger loads them."""
    (tmp_path / "CoLA").mkdir()
    texts, labels = [text(row, 3 + row % 6) for row in range(30)], [int(row % 3 == 0) for row in range(30)]
    for name, classes in {"train": [row % 2 for row in range(24)], "dev": labels}.items():
        lines = [f"x\t{label}\t\t{sentence}" for sentence, label in zip(texts, classes, strict=False)]
        (tmp_path / "CoLA" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    checkpoint = saved(bert(5, labels=2), tmp_path / "bert")
    models, printed = split_distil_and_prune(checkpoint, tmp_path, ["--task", "cola", "--data", str(tmp_path)], capsys)
    found = []
    for name, folder in (("teacher", "bert"), ("mixture", "mixture"), ("dropped", "pruned")):
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / folder, trust_remote_code=True).eval()
        tokenizer = BertTokenizerFast.from_pretrained(tmp_path / folder)
        given = [tokenizer(one, truncation=True, max_length=16, return_tensors="pt") for one in texts]
        with torch.no_grad():
            score = matthews_corrcoef(labels, [int(model(**one).logits.argmax()) for one in given])
        assert models[name]["matthews_correlation"]["value"] == pytest.approx(score, abs=2e-5)
        assert re.search(f"^ +{name} .*{score:.4f} ± ", printed, re.M), printed
        found.append(score)
    assert models["dev_rows"] == 30 and "accuracy" not in printed and found.count(0) < 2


def write_squad(folder: Path, version: str) -> None:
    """Write official files; of version 2.0, every third question has no answer."""
    for name, count in (("train", 20), ("dev", 30)):
        paragraphs = []
        for row in range(count):
            question, context = text(row + 1, 2), text(row, 6 + row % 3)
            impossible = version == "v2.0" and row % 3 == 0
            answers = [] if impossible else [{"text": context.split()[0], "answer_start": 0}]
            entry = {"id": f"{name}{row}", "question": question, "answers": answers, "is_impossible": impossible}
            paragraphs.append({"context": context, "qas": [entry]})
        content = {"version": version, "data": [{"title": "words", "paragraphs": paragraphs}]}
        (folder / f"{name}-{version}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(("task", "version"), [("squad", "v1.1"), ("squad_v2", "v2.0")])
def test_questions_by_exact_match_and_f1(
    task: str, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their scores are tested for all kinds of heads where they are computed."""
    write_squad(tmp_path, version)
    checkpoint = saved(shaken(BertForQuestionAnswering(BertConfig(**SHAPE)), 3), tmp_path / "bert")
    models, printed = split_distil_and_prune(checkpoint, tmp_path, ["--task", task, "--data", str(tmp_path)], capsys)
    assert models["dev_rows"] == 30
    for name in ("teacher", "mixture", "dropped"):
        found = {metric: models[name][metric]["value"] for metric in ("exact_match", "f1")}
        assert re.search(f"^ +{name} .*{found['f1']:.4f} ± .*{found['exact_match']:.4f} ± ", printed, re.M)
    for folder in ("mixture", "pruned"):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path / folder, trust_remote_code=True)


def test_a_head_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_squad(tmp_path, "v1.1")
    classifier = saved(bert(labels=2, max_position_embeddings=40), tmp_path / "classifier")
    reader = saved(shaken(BertForQuestionAnswering(BertConfig(**SHAPE)), 3), tmp_path / "reader")
    rows = ["--task", "squad", "--data", str(tmp_path), "--max-length", "16", "--device", "cpu"]
    for checkpoint, options, message in (
        (classifier, [], "has no trained head for this task: fine-tune it first"),
        (reader, ["--head-experts", "2"], "--head-experts 2: heads for question_answering predict from single tokens"),
    ):
        assert main([str(checkpoint), "--out", str(tmp_path / "never"), *rows, "--experts", "4", *options]) == 2
        shown = capsys.readouterr().err
        assert message in shown and shown.count("\n") == 1 and not (tmp_path / "never").exists()
