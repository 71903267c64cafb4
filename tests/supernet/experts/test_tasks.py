"""python -m supernet.experts on all kinds of tasks, from small files in their official layouts.

The reported metrics are computed again, from their definitions and the saved checkpoint as a stranger loads it.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
from tests.supernet.files import saved, text
from tests.tiny import SIZES, bert, shaken

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


@torch.no_grad()
def logits_of(folder: Path, auto: Any, pairs: Sequence[tuple[str, ...]]) -> list[Any]:
    """The outputs for texts or pairs of texts, one at a time and without padding."""
    model = auto.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    return [model(**tokenizer(*texts, truncation=True, max_length=16, return_tensors="pt")) for texts in pairs]


def check(models: dict[str, Any], printed: str, expected: dict[str, dict[str, float]]) -> None:
    """Every metric of these models is as expected, in the file and on the console."""
    for model, metrics in expected.items():
        for name, value in metrics.items():
            reported = models[model][name]
            assert reported["value"] == pytest.approx(value, abs=2e-5), (model, name)
            assert reported["standard_error"] >= 0
            figures = f"{reported['value']:.4f} ± {reported['standard_error']:.4f}"
            assert re.search(f"^ +{model} .*{figures}", printed, re.M), (model, figures, printed)


def matthews(predicted: np.ndarray, actual: np.ndarray) -> float:
    """The correlation coefficient of two binary variables."""
    return float(np.corrcoef(predicted, actual)[0, 1]) if len(set(predicted)) > 1 else 0.0


def test_cola_by_matthews(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "CoLA").mkdir()
    labels = {"train": [row % 2 for row in range(24)], "dev": [int(row % 3 == 0) for row in range(30)]}
    for name, classes in labels.items():
        lines = [f"x\t{label}\t\t{text(row, 3 + row % 6)}" for row, label in enumerate(classes)]
        (tmp_path / "CoLA" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    checkpoint = saved(bert(5, labels=2), tmp_path / "bert")
    models, printed = split_distil_and_prune(checkpoint, tmp_path, ["--task", "cola", "--data", str(tmp_path)], capsys)
    texts = [(text(row, 3 + row % 6),) for row in range(30)]
    expected = {}
    for stage, folder in (("teacher", "bert"), ("mixture", "mixture"), ("dropped", "pruned")):
        outputs = logits_of(tmp_path / folder, AutoModelForSequenceClassification, texts)
        predicted = np.array([int(output.logits.argmax()) for output in outputs])
        expected[stage] = {"matthews_correlation": matthews(predicted, np.array(labels["dev"]))}
    assert models["dev_rows"] == 30 and "accuracy" not in printed
    assert sum(metrics["matthews_correlation"] != 0 for metrics in expected.values()) >= 2, expected
    check(models, printed, expected)


def write_squad(folder: Path, version: str, answerable: Callable[[int], bool]) -> dict[str, list[tuple[str, ...]]]:
    """Writes official files; returns (question, context, answers...) of every question by split."""
    written: dict[str, list[tuple[str, ...]]] = {}
    for name, count in (("train", 20), ("dev", 104)):
        written[name], paragraphs = [], []
        for row in range(count):
            question, context = text(row + 1, 2), text(row, 6 + row % 3)
            words = context.split()
            chosen = [" ".join(words[row % 5 : row % 5 + 2]), words[row % 5]] if answerable(row) else []
            written[name].append((question, context, *chosen))
            answers = [{"text": answer, "answer_start": (" " + context).index(" " + answer)} for answer in chosen]
            entry = {"id": f"{name}{row}", "question": question, "answers": answers}
            if version == "v2.0":
                entry["is_impossible"] = not chosen
            paragraphs.append({"context": context, "qas": [entry]})
        content = {"version": version, "data": [{"title": "words", "paragraphs": paragraphs}]}
        (folder / f"{name}-{version}.json").write_text(json.dumps(content))
    return written


def squad_scores(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 by the official definitions: without articles, punctuation and case."""

    def words(answer: str) -> list[str]:
        bare = "".join(character for character in answer.lower() if character not in string.punctuation)
        return [word for word in bare.split() if word not in ("a", "an", "the")]

    def f1(answer: str) -> float:
        shared = sum((Counter(words(prediction)) & Counter(words(answer))).values())
        if not words(prediction) or not words(answer):
            return float(words(prediction) == words(answer))
        return 2 * shared / (len(words(prediction)) + len(words(answer)))

    return (
        max(float(words(prediction) == words(answer)) for answer in answers or [""]),
        max(f1(answer) for answer in answers or [""]),
    )


@pytest.mark.parametrize(("task", "version"), [("squad", "v1.1"), ("squad_v2", "v2.0")])
def test_questions_by_exact_match_and_f1(
    task: str, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contexts are short enough for one window, so the best span is found by trying all. Batches differ in length."""
    without = version == "v2.0"
    dev = write_squad(tmp_path, version, lambda row: not (without and row % 3 == 0))["dev"]
    model = shaken(BertForQuestionAnswering(BertConfig(**SHAPE)), 3)
    checkpoint = saved(model, tmp_path / "bert")
    models, printed = split_distil_and_prune(checkpoint, tmp_path, ["--task", task, "--data", str(tmp_path)], capsys)
    expected = {}
    for stage, folder in (("teacher", "bert"), ("mixture", "mixture"), ("dropped", "pruned")):
        outputs = logits_of(tmp_path / folder, AutoModelForQuestionAnswering, [row[:2] for row in dev])
        exact, overlap = [], []
        for (question, context, *answers), output in zip(dev, outputs, strict=True):
            start, end = output.start_logits[0].tolist(), output.end_logits[0].tolist()
            first, words = len(question.split()) + 2, context.split()
            assert len(start) == first + len(words) + 1
            spans = {(i, j): start[first + i] + end[first + j] for i in range(len(words)) for j in range(i, len(words))}
            (i, j), best = max(spans.items(), key=lambda item: item[1])
            none = without and start[0] + end[0] > best
            scores = squad_scores("" if none else " ".join(words[i : j + 1]), answers)
            exact.append(scores[0])
            overlap.append(scores[1])
        expected[stage] = {"exact_match": float(np.mean(exact)), "f1": float(np.mean(overlap))}
    assert models["dev_rows"] == 104
    check(models, printed, expected)


def test_a_head_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_squad(tmp_path, "v1.1", lambda row: True)
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
