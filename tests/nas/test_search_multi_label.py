"""Rows with any number of classes, and texts of several windows, in all commands from the search to the export."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from nas import inspect
from nas.export.command import main as export
from nas.final.command import main as train_final
from nas.report.command import main as report
from search_spaces import Architecture, cost
from tests.commands import run
from tests.nas.rows import DEV, sentences, study, words
from tests.nas.tiny_study import TinyStudy, trials_of

pytestmark = pytest.mark.slow

CLASSES = ["b", "d"]
LENGTH = 8
TEXTS = [text for text, _ in sentences()[DEV]]
EXPECTED = np.array([[name in {word[0] for word in words(text)} for name in CLASSES] for text in TEXTS])


def scores(folder: Path) -> dict[str, float]:
    """F1 of the model in a folder on the dev rows, from the mean logits of windows that transformers makes."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    given = tokenizer(
        TEXTS,
        truncation=True,
        max_length=LENGTH,
        stride=LENGTH // 3,
        return_overflowing_tokens=True,
        padding=True,
        return_tensors="pt",
    )
    sources = given.pop("overflow_to_sample_mapping")
    assert len(sources) > len(TEXTS)
    with torch.no_grad():
        logits = model(**given).logits
    means = np.array([logits[sources == text].mean(0).numpy() for text in range(len(TEXTS))])
    return {f"f1_{average}": float(f1_score(EXPECTED, means >= 0, average=average)) for average in ("micro", "macro")}


def test_a_search_and_what_follows(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = {f"stage{stage}": {"trials": 3, "sampler": "random", "confirm": 1, "confirm_seeds": 1} for stage in "123"}
    preset = study(tiny_study, tmp_path, "multi_label", max_length=LENGTH, long_texts="windows", **few)
    result = tiny_study.run(*tiny_study.search(tmp_path / "out", "--stage", "all", preset=preset))
    assert result.returncode == 0, result.stderr
    assert "of the training rows have more than 8 tokens and are read in windows" in result.stdout + result.stderr
    folder = tmp_path / "out" / "multi_label"
    for stage in ("stage-1", "stage-2", "stage-3"):
        assert all(trial.user_attrs.get("failure") is None for trial in trials_of(folder, stage))
    final = tmp_path / "final"
    assert run(train_final, folder / "architecture.json", "--out", final, "--device", "cpu") == 0
    metrics = json.loads((final / "metrics.json").read_text())
    assert metrics["metrics"] == ["f1_micro", "f1_macro", "accuracy"] and metrics["dev_rows"] == len(TEXTS)
    for name, value in scores(final).items():
        assert metrics["models"]["student"][name]["value"] == pytest.approx(value, abs=1e-6), name
    assert metrics["models"]["teacher"]["f1_micro"]["value"] > 0.6

    out = tmp_path / "exported"
    assert run(export, final, "--out", out, "--onnx", "--int8", "--rounds", "2", "--quiet") == 0
    assert scores(out) == scores(final)
    config = json.loads((out / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification" and list(config["id2label"].values()) == CLASSES
    assert run(report, folder, "--checkpoint", final) == 0
    assert "f1_micro" in (folder / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert run(inspect.main, folder, "--json", "--labels", "2", "--head", "multi_label_classification") == 0
    winner = Architecture.load(folder / "architecture.json")
    assert json.loads(capsys.readouterr().out)["params"] == cost.params(winner, 2)
