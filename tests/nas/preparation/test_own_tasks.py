"""A reader and a task type that a user adds, from the rows to the score of a candidate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from distill.objectives.outputs import LOGITS, run
from distill.tasks import readers
from distill.tasks.encoding import Encoded, collate, encode_sentences
from distill.tasks.metrics import Metric
from distill.tasks.readers import load_task
from distill.tasks.splits import Split
from distill.tasks.task import Task, TaskData, hold_out
from distill.tasks.types import CLASSIFICATION, TASK_TYPES, TaskType, encode
from distill.training.evaluation import EvalSet
from distill.training.teacher import load_tokenizer
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation import data
from nas.preparation.prepare import prepare
from search_spaces.cost import CLASSIFIER
from tests.nas.tiny_study import SOURCES, TinyStudy, corpus, uniform
from tests.scores import score
from tests.tiny import bert

NAME = "multi_label"
BEGINNINGS = ("b", "d", "f")


def encode_labels(tokenizer: Any, split: Split, max_length: int, stride: int) -> Encoded:
    return encode_sentences(tokenizer, split.texts, split.pairs, max_length, np.array(split.labels, np.float32), NAME)


def predict(rows: Encoded, logits: Sequence[np.ndarray], split: Split, labels: Sequence[str]) -> np.ndarray:
    return np.stack(logits) > 0


def loss(logits_BC: Tensor, batch: dict[str, Tensor], reduction: str = "mean") -> Tensor:
    return F.binary_cross_entropy_with_logits(logits_BC.float(), batch["labels"], reduction=reduction)


def distributions(logits_BC: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """For each sentence and label, the logits of not having and of having the label."""
    logits_N = logits_BC.float().flatten()
    return torch.stack((torch.zeros_like(logits_N), logits_N), dim=1)


MULTI_LABEL = TaskType(
    name=NAME,
    model=AutoModelForSequenceClassification,
    head=CLASSIFIER,
    pipeline="text-classification",
    problem_type="multi_label_classification",
    classes=True,
    split=Split,
    metrics={
        "label_accuracy": Metric(lambda predictions, references, labels: (predictions == references).mean(axis=1))
    },
    encode=encode_labels,
    predict=predict,
    references=lambda split: np.array(split.labels) > 0.5,
    loss=loss,
    distributions=distributions,
    problem=lambda split, labels: (
        "" if all(len(row) == len(labels) for row in split.labels) else "not a number for each label"
    ),
)


class Reader:
    """Tasks on the tests' corpus: which letters a sentence's words begin with, and its library."""

    TASKS = ("beginnings", "sources")

    def task_type(self, name: str) -> str:
        return NAME if name == "beginnings" else CLASSIFICATION

    def sources(self, name: str, data: Path | None = None) -> list[str]:
        return [corpus().fingerprint, name]

    def load(self, name: str, data: Path | None = None) -> TaskData[Split]:
        rows = corpus()
        if name == "beginnings":
            task = Task(name, BEGINNINGS, NAME, ("label_accuracy",))
            labels: list[Any] = [
                tuple(float(any(word[0] == start for word in text.lower().split())) for start in BEGINNINGS)
                for text in rows.texts
            ]
        else:
            task, labels = Task(name, SOURCES), [SOURCES.index(source) for source in rows.sources]
        train, dev = hold_out(Split(rows.texts, None, tuple(labels)), seed=1)
        return TaskData(task, *hold_out(train), dev)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TASK_TYPES, "multi_label_classification")  # the same, built in
    monkeypatch.setitem(TASK_TYPES, NAME, MULTI_LABEL)
    monkeypatch.setattr(readers, "READERS", [*readers.READERS, Reader()])


@pytest.mark.usefixtures("added")
def test_rows_of_an_added_type_are_encoded_and_scored(tiny_study: TinyStudy, accelerator: Accelerator) -> None:
    rows = load_task("beginnings")
    tokenizer = load_tokenizer(str(tiny_study.teacher))
    encoded = encode(tokenizer, rows.dev, 24, task_type=NAME)
    model = bert(labels=3, problem_type="multi_label_classification", vocab_size=len(tokenizer))
    outputs = run(model, collate(encoded, np.arange(5), 0), frozenset({LOGITS}))
    assert outputs.task_type == NAME
    found = EvalSet(rows.task, rows.dev, encoded, 0).score(model, accelerator, first=50)
    with torch.no_grad():
        logits = run(model, collate(encoded, np.arange(50), 0), frozenset({LOGITS})).logits
    expected = np.mean((logits.numpy() > 0) == np.array(rows.dev.labels[:50], bool))
    assert found.value == pytest.approx(expected)
    right = np.array(rows.dev.labels, bool)
    assert score(rows.task, right, right)["label_accuracy"].value == 1.0
    with pytest.raises(ValueError, match="train: not a number for each label"):
        TaskData(rows.task, Split(("a",), None, ((1.0,),)), rows.search, rows.dev)


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("name", Reader.TASKS)
def test_a_candidate_learns_an_added_task(tiny_study: TinyStudy, name: str) -> None:
    places = {"tasks": [name], "finetune.steps": 150, "candidate.steps": 40}
    workspace = prepare(load_config(str(tiny_study.preset), places), "cpu")
    evaluator = TrainedEvaluator(workspace, "cpu")
    assert workspace.folders.task.task_type == Reader().task_type(name)
    assert evaluator.teacher().config.problem_type == (MULTI_LABEL.problem_type if name == "beginnings" else None)
    chance = max(1 - evaluator.search_rows.labels.mean(), 0.5) if name == "beginnings" else 1 / 3  # type: ignore[union-attr]
    assert evaluator.score(evaluator.teacher()).value > chance + 0.05
    assert evaluator.evaluate(uniform(workspace), 0).value > chance


@pytest.mark.usefixtures("added")
def test_added_tasks_share_stage_3_with_those_of_the_same_head(tiny_study: TinyStudy) -> None:
    data.check_tasks(load_config(str(tiny_study.preset), {"tasks": ["beginnings", "sources", "library"]}))
    with pytest.raises(ConfigError, match="beginnings and squad need different heads"):
        data.check_tasks(load_config(str(tiny_study.preset), {"tasks": ["beginnings", "squad"], "data": "."}))
