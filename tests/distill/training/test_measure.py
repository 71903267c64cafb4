"""How models are compared with a reference, in numbers and in the table."""

from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from sklearn.metrics import matthews_corrcoef

from distill.command.report import measurement_table
from distill.tasks.task import Task, contributions
from distill.training.measure import scores

TASK = Task("t", ("no", "yes"), metrics=("matthews_correlation", "accuracy"))
COSTS = {"latency_ms": 2.0, "params": 10**6}


def predictions(count: int, seed: int, right: float, labels: np.ndarray) -> np.ndarray:
    return np.where(np.random.default_rng(seed).random(count) < right, labels, 1 - labels)


def printed(models: dict[str, dict[str, Any]]) -> str:
    metrics = {"models": {name: row | COSTS for name, row in models.items()}, "metrics": TASK.metrics, "dev_rows": 500}
    console = Console(width=80)
    with console.capture() as capture:
        measurement_table(metrics).print(console)
    return capture.get()


def test_models_are_compared_with_the_teacher() -> None:
    labels = np.random.default_rng(0).integers(0, 2, 500)
    predicted = {"teacher": predictions(500, 1, 0.9, labels), "student": predictions(500, 2, 0.8, labels)}
    found = scores(TASK, {name: contributions(TASK, row, labels) for name, row in predicted.items()}, "teacher")
    assert all("difference" not in row for row in found["teacher"].values())
    right = {name: row == labels for name, row in predicted.items()}
    assert found["student"]["accuracy"]["difference"] == {
        "to": "teacher",
        "value": pytest.approx(right["student"].mean() - right["teacher"].mean()),
        "standard_error": pytest.approx(stats.sem(right["student"].astype(int) - right["teacher"], ddof=0)),
        "share": pytest.approx(right["student"].mean() / right["teacher"].mean()),
    }
    teacher, student = (matthews_corrcoef(labels, predicted[name]) for name in ("teacher", "student"))
    difference = found["student"]["matthews_correlation"]["difference"]
    assert (difference["value"], difference["share"]) == pytest.approx((student - teacher, student / teacher))
    # The table compares by the first metric.
    figures = f"{difference['value']:+.4f} ± {difference['standard_error']:.4f} ({student / teacher:.1%})"
    assert printed(found).count(figures) == 1


def test_there_is_no_share_of_a_score_that_is_not_positive() -> None:
    labels = np.array([0, 1, 0, 1])
    rows = {"teacher": contributions(TASK, 1 - labels, labels), "student": contributions(TASK, labels, labels)}
    found = scores(TASK, rows, "teacher")["student"]
    for metric, difference in (("matthews_correlation", 2.0), ("accuracy", 1.0)):
        assert (found[metric]["difference"]["value"], found[metric]["difference"]["share"]) == (difference, None)
    text = printed(scores(TASK, rows, "teacher"))
    assert "+2.0000 ± " in text and "%" not in text
