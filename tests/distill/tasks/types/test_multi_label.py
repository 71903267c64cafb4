"""Rows with any number of classes: encoding, loss, weights, thresholds and metrics."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from sklearn.metrics import accuracy_score, f1_score
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from distill.objectives import OBJECTIVES
from distill.objectives.losses import soft_kl
from distill.objectives.outputs import run
from distill.tasks.classes import weighted, with_classes_of
from distill.tasks.encoding import collate, load_encoded, save_encoded, take
from distill.tasks.splits import Split
from distill.tasks.task import Task, TaskData, TaskError
from distill.tasks.types import CLASSIFICATION, MULTI_LABEL, TASK_TYPES, encode
from distill.training.evaluation import EvalSet, comparable_outputs
from tests import tiny
from tests.scores import score

NAMES = ("anger", "joy", "fear")
METRICS = ("f1_micro", "f1_macro", "accuracy")
TYPE = TASK_TYPES[MULTI_LABEL]
RNG = np.random.default_rng(0)


def split(rows: int = 40) -> Split:
    labels = RNG.random((rows, 3)) < (0.5, 0.2, 0.1)
    return Split(
        tuple(f"a{'b' * (row % 5)}" for row in range(rows)), None, tuple(map(tuple, labels.astype(int).tolist()))
    )


def test_metrics_are_scikit_learns() -> None:
    task = Task("t", NAMES, MULTI_LABEL, METRICS)
    expected, predicted = RNG.random((50, 3)) < 0.3, RNG.random((50, 3)) < 0.4
    found = score(task, predicted, expected)
    assert found["f1_micro"].value == pytest.approx(f1_score(expected, predicted, average="micro"))
    assert found["f1_macro"].value == pytest.approx(f1_score(expected, predicted, average="macro"))
    assert found["accuracy"].value == pytest.approx(accuracy_score(expected, predicted))
    expected[:, 2] = predicted[:, 2] = False  # a class that neither has does not count
    macro = f1_score(expected, predicted, average="macro", zero_division=np.nan)
    assert score(task, predicted, expected)["f1_macro"].value == pytest.approx(macro)


def test_the_loss_is_binary_cross_entropy() -> None:
    logits, labels = torch.randn(6, 3), torch.tensor(split(6).labels).float()
    expected = F.binary_cross_entropy_with_logits(logits, labels)
    torch.testing.assert_close(TYPE.loss(logits, {"labels": labels}, "mean"), expected)
    torch.testing.assert_close(TYPE.loss(logits, {"labels": labels}, "sum"), expected * 18)
    positive = torch.tensor([2.0, 3.0, 1.0])
    weights = torch.where(labels > 0, positive, 1.0)
    expected = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=positive)
    torch.testing.assert_close(TYPE.loss(logits, {"labels": labels, "weights": weights}, "mean"), expected)


def test_soft_labels_are_the_probabilities_of_each_class() -> None:
    """The divergence is that of Bernoulli distributions, at a temperature, too."""
    student, teacher = torch.randn(5, 3), torch.randn(5, 3)
    assert TYPE.distributions is not None
    found = soft_kl(*(TYPE.distributions(logits, {}) for logits in (student, teacher)), temperature=2.0)
    p, q = torch.sigmoid(teacher / 2), torch.sigmoid(student / 2)
    torch.testing.assert_close(found, 4 * (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean())
    outputs = comparable_outputs([student], [{}], TYPE)
    np.testing.assert_allclose(outputs, student.numpy() - student.numpy().mean(axis=0), atol=1e-6)


def test_the_threshold_is_of_probabilities(tmp_path: Path, accelerator: Accelerator) -> None:
    rows, tokenizer = split(), tiny.tokenizer("ab")
    model = tiny.shaken(tiny.bert(labels=3, problem_type="multi_label_classification", vocab_size=len(tokenizer)))
    encoded = encode(tokenizer, rows, 8, task_type=MULTI_LABEL)
    assert encoded.labels is not None and encoded.labels.dtype == np.float32
    batch = collate(encoded, np.arange(len(rows)), 0)
    with torch.no_grad():
        probabilities = torch.sigmoid(model(batch["input_ids"], batch["attention_mask"]).logits).numpy()
    for threshold in (0.5, float(np.median(probabilities))):
        task = Task("t", NAMES, MULTI_LABEL, METRICS, threshold)
        found = np.asarray(EvalSet(task, rows, encoded, 0).predictions(model, accelerator))
        certain = abs(probabilities - threshold) > 1e-5
        np.testing.assert_array_equal(found[certain], probabilities[certain] > threshold)
    with pytest.raises(ValueError, match=r"threshold must be between 0 and 1, not 1.0"):
        Task("t", NAMES, MULTI_LABEL, METRICS, 1.0)


def test_problems_are_named() -> None:
    rows = split()
    for labels in ((1, 0), (1, 0, 2)):
        wrong = replace(rows, labels=(labels, *rows.labels[1:]))
        with pytest.raises(ValueError, match=r"train: a row has no 0 or 1 for each of 3 classes"):
            TaskData(Task("t", NAMES, MULTI_LABEL, METRICS), wrong, rows, rows)


def test_the_order_of_a_teachers_classes() -> None:
    rows = split()
    data = TaskData(Task("t", NAMES, MULTI_LABEL, METRICS), rows, rows, rows)
    found = with_classes_of(data, ("Joy", "none", "Fear", "Anger"), all_of_them=True)
    assert found.task.labels == ("Joy", "none", "Fear", "Anger")
    assert found.dev.labels == tuple((joy, 0, fear, anger) for anger, joy, fear in rows.labels)


def encoded(folder: Path, task: Task, labels: Any) -> Any:
    rows = Split(("a b",) * len(labels), None, tuple(labels))
    return encode(tiny.tokenizer("ab"), rows, 8, task_type=task.task_type)


def test_weights_of_several_classes(tmp_path: Path) -> None:
    """Balanced: having and not having a class count alike, and each class as much as another."""
    task = Task("t", NAMES, MULTI_LABEL, METRICS)
    labels = np.array(split().labels)
    weights = weighted(encoded(tmp_path, task, labels.tolist()), task, "balanced").weights
    assert weights is not None and weights.mean() == pytest.approx(1)
    for place in range(3):
        expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=labels[:, place])
        np.testing.assert_allclose(weights[:, place], expected[labels[:, place]], rtol=1e-5)
    weights = weighted(encoded(tmp_path, task, labels.tolist()), task, {"joy": 3}).weights
    assert weights is not None
    np.testing.assert_allclose(weights / weights.min(), np.where(labels * (0, 1, 0) > 0, 3, 1), rtol=1e-5)


def test_weights_of_single_classes(tmp_path: Path) -> None:
    """The loss is torch's with the weights of the classes; rows keep their weights wherever they go."""
    task, labels = Task("t", NAMES), [0] * 6 + [1] * 3 + [2]
    rows = encoded(tmp_path, task, labels)
    of_classes = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    given = weighted(rows, task, "balanced")
    save_encoded(given, tmp_path / "rows.npz")
    chosen = np.array([9, 0, 7])
    stored = take(load_encoded(tmp_path / "rows.npz"), chosen)
    np.testing.assert_allclose(stored.weights, of_classes[[2, 0, 1]], rtol=1e-6)
    batch = collate(given, np.arange(10), 0)
    logits = torch.randn(10, 3)
    expected = F.cross_entropy(logits, torch.tensor(labels), weight=torch.tensor(of_classes).float())
    loss = TASK_TYPES[CLASSIFICATION].loss
    torch.testing.assert_close(loss(logits, batch, "mean"), expected)
    torch.testing.assert_close(loss(logits, batch, "sum"), 10 * expected)
    assert "weights" not in collate(rows, chosen, 0)
    with pytest.raises(TaskError, match="class weights: 'joy' and 'Joy' are one class"):
        weighted(rows, task, {"joy": 2.0, "Joy": 3.0})
    with pytest.raises(TaskError, match="class weights: 'joi' is not one of the classes anger, joy, fear"):
        weighted(rows, task, {"joi": 2.0})


OF_PREDICTIONS = ("efficientbert", "tinybert", "moebert", "microbert", "kd", "pkd", "distilbert", "codir", "none")


@pytest.mark.parametrize("name", OF_PREDICTIONS)
def test_every_objective_learns_from_them(tmp_path: Path, name: str) -> None:
    rows, tokenizer = split(6), tiny.tokenizer("ab")
    settings: dict[str, Any] = {"labels": 3, "problem_type": "multi_label_classification", "vocab_size": len(tokenizer)}
    student, teacher = (tiny.bert(seed, **settings) for seed in (0, 1))
    arrays = encode(tokenizer, rows, 8, task_type=MULTI_LABEL)
    objective = OBJECTIVES[name].make({}, student.config, teacher.config, arrays)
    batch = collate(arrays, np.arange(6), 0)
    with torch.no_grad():
        taught = run(teacher, batch, objective.teacher_needs)
    loss = objective(run(student, batch, objective.needs), taught, batch)
    loss.backward()
    assert torch.isfinite(loss) and any(parameter.grad is not None for parameter in student.parameters())
