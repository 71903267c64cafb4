"""A model that predicts any number of classes, from labeled rows to its student, and from that to another one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from sklearn.metrics import f1_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from distill.__main__ import main as distil_main
from distill.memory import RowsError
from distill.python import distil
from nas.compress.command import main
from nas.compress.python import Compressed, compress_model
from nas.compress.rows import predicted_labels
from tests.commands import Refused
from tests.nas.rows import sentences, table, words
from tests.nas.tiny_study import TinyStudy

NAMES = ["b", "d"]
LIMITS: dict[str, Any] = {"max_params": 12_000, "max_length": 24, "device": "cpu"}


def rows(names: list[str] | None = None) -> Dataset:
    """Sentences with the letters that words begin with, by their numbers."""
    found = [
        {"sentence": text, "label": [NAMES.index(name) for name in NAMES if name in {word[0] for word in words(text)}]}
        for text, _ in sentences()[:200]
    ]
    features = Features({"sentence": Value("string"), "label": Sequence(ClassLabel(names=names or NAMES))})
    return Dataset.from_list(found, features=features)


@pytest.fixture(scope="module")
def teacher(shared_study: TinyStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary BERT that is fine-tuned on the rows."""
    recipe: dict[str, Any] = {"steps": 150, "batch_size": 16, "learning_rate": 2e-3, "objective": "none"}
    kind: dict[str, Any] = {"multi_label": True, "class_weights": "balanced", "max_length": 24, "device": "cpu"}
    folder = tmp_path_factory.mktemp("multi-label") / "teacher"
    distil(str(shared_study.teacher), rows(), **kind, **recipe).save(folder)
    return folder


@pytest.fixture(scope="module")
def student(teacher: Path) -> Path:
    kind: dict[str, Any] = {"multi_label": True, "threshold": 0.4, "class_weights": {"b": 2}}
    compress_model(str(teacher), rows(), **kind, steps=20, **LIMITS).save(teacher.with_name("student"))
    return teacher.with_name("student")


def test_a_student(student: Path) -> None:
    """Its probabilities have the score that its measurements say, at the threshold."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(student, trust_remote_code=True).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(student)
    assert model.config.problem_type == "multi_label_classification" and model.config.id2label == {0: "b", 1: "d"}
    held_out = rows()[9::10]
    given = tokenizer(held_out["sentence"], return_tensors="pt", padding=True, truncation=True, max_length=24)
    with torch.no_grad():
        probabilities = torch.sigmoid(model(given["input_ids"], given["attention_mask"]).logits).numpy()
    expected = np.array([[number in label for number in (0, 1)] for label in held_out["label"]])
    metrics = Compressed.load(student).metrics
    assert metrics["metrics"] == ["f1_micro", "f1_macro", "accuracy"]
    for average in ("micro", "macro"):
        value = f1_score(expected, probabilities > 0.4, average=average)
        tolerance = 1e-6 if metrics["precision"] == "no" else 0.05
        assert metrics["models"]["student"][f"f1_{average}"]["value"] == pytest.approx(value, abs=tolerance)
    assert metrics["models"]["teacher"]["f1_micro"]["value"] > 0.6


def test_it_teaches_without_labels(teacher: Path, tmp_path: Path) -> None:
    """What it predicts becomes the labels, with which it agrees."""
    texts, out = tmp_path / "texts.txt", tmp_path / "out"
    texts.write_text("\n".join(rows()["sentence"]))
    options = ["--unlabeled", texts, "--max-params", "9000", "--max-length", "24", "--steps", "2", "--device", "cpu"]
    assert main([str(word) for word in [teacher, *options, "--quiet", "--out", out]]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["task_type"] == "multi_label_classification"
    assert metrics["models"]["teacher"]["f1_micro"]["value"] > 0.9


def test_a_teacher_of_single_classes(teacher: Path, tmp_path: Path, refused: Refused) -> None:
    """A teacher of any number of classes is refused on rows with one class each."""
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("one\tletters\n" + "ba do .\tb\ndo fi .\td\n" * 20)
    given = ["--train", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv", "--text", "one", "--label", "letters"]
    options = ["--max-params", "9000", "--max-length", "24", "--device", "cpu", "--quiet", "--out", tmp_path / "out"]
    said = refused(main, teacher, *given, *options)
    assert "was trained for multi label classification; the task is classification" in said


def test_distil(teacher: Path, tmp_path: Path) -> None:
    """The command and the function, with class weights and a threshold; weights change what is learned."""
    files = table(tmp_path)
    given = ["--train", files["train"], "--dev", files["dev"], "--text", "one", "--label", "letters", "--multi-label"]
    options = ["--student", "first:1", "--teacher", teacher, "--steps", "3", "--max-length", "24", "--device", "cpu"]
    scores = []
    for name, more in (("plain", []), ("weighted", ["--class-weights", "b=9,d=0.5", "--threshold", "0.6"])):
        out = tmp_path / name
        assert distil_main([str(word) for word in [*given, *options, *more, "--quiet", "--out", out]]) == 0
        scores.append(json.loads((out / "metrics.json").read_text())["models"]["student"])
    assert scores[0] != scores[1]
    result = distil("first:1", rows(), teacher=str(teacher), multi_label=True, steps=1, device="cpu", max_length=24)
    assert result.student.config.problem_type == "multi_label_classification"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--multi-label", "--regression"], "--regression cannot be combined with --multi-label"),
        (["--multi-label", "--threshold", "1"], "--threshold: must be between 0 and 1, not 1.0"),
        (["--threshold", "0.3"], "--threshold is for rows with any number of classes: add --multi-label"),
        (["--regression", "--class-weights", "balanced"], "--class-weights: the rows of --regression have no classes"),
        (["--class-weights", "b=-1"], "'b=-1' is neither balanced nor NAME=X,... with weights above 0"),
        (["--class-weights", "c=2", "--multi-label"], "class weights: 'c' is not one of the classes b, d"),
    ],
)
def test_mistakes(options: list[str], said: str, teacher: Path, tmp_path: Path, refused: Refused) -> None:
    files = table(tmp_path)
    given = ["--train", files["train"], "--dev", files["dev"], "--text", "one", "--label", "letters", "--device", "cpu"]
    for command, more in ((main, [str(teacher)]), (distil_main, ["--student", "first:1", "--teacher", str(teacher)])):
        words = [*given, *more, "--max-length", "24", *options, "--out", tmp_path / "out"]
        assert said in refused(command, *words)


def test_mistakes_in_python(teacher: Path) -> None:
    data = rows().cast(Features({"sentence": Value("string"), "label": Sequence(Value("int64"))}))
    texts = [{**row, "label": "b"} for row in data]
    with pytest.raises(ValueError, match=r"train: row 1 has 'b' in the column 'label', which is not a list"):
        compress_model(str(teacher), texts, multi_label=True, **LIMITS)
    broken = Dataset.from_list([{"sentence": "a", "label": [-1]}] * 20, features=rows().features)
    with pytest.raises(RowsError, match=r"train: row 1 has no label in the column 'label', but \[-1\]"):
        compress_model(str(teacher), broken, multi_label=True, **LIMITS)
    with pytest.raises(ValueError, match="threshold: Input should be greater than 0"):
        compress_model(str(teacher), rows(), multi_label=True, threshold=0, **LIMITS)


def test_long_texts(teacher: Path) -> None:
    """A text counts once, with the mean of the logits of its windows, which transformers makes here."""
    windows: dict[str, Any] = {"long_texts": "windows", "max_length": 8, "max_params": 12_000, "device": "cpu"}
    result = compress_model(str(teacher), rows(), multi_label=True, steps=2, **windows)
    held_out = rows()[9::10]
    model: Any = AutoModelForSequenceClassification.from_pretrained(teacher).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(teacher)
    cut = {"truncation": True, "max_length": 8, "stride": 2, "return_overflowing_tokens": True}
    given = tokenizer(held_out["sentence"], **cut, return_tensors="pt", padding=True)
    sources = given.pop("overflow_to_sample_mapping")
    with torch.no_grad():
        logits = model(**given).logits
    chosen = np.array([logits[sources == text].mean(0).numpy() >= 0 for text in range(len(held_out["label"]))])
    expected = np.array([[number in label for number in (0, 1)] for label in held_out["label"]])
    assert len(sources) > len(chosen) == result.metrics["dev_rows"]
    tolerance = 1e-6 if result.metrics["precision"] == "no" else 0.05
    value = f1_score(expected, chosen, average="micro")
    assert result.metrics["models"]["teacher"]["f1_micro"]["value"] == pytest.approx(value, abs=tolerance)
    labels, classes = predicted_labels(held_out["sentence"], str(teacher), 8, "windows", "cpu")
    assert [[name in label for name in classes] for label in labels] == chosen.tolist()
