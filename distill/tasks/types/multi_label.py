"""Multi-label classification of one or two sentences, each of which has any number of the classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from distill.tasks.encoding import Encoded, encode_sentences
from distill.tasks.metrics import ALL_LABELS, LABELS_MACRO_F1, LABELS_MICRO_F1
from distill.tasks.splits import Split
from distill.tasks.types.base import MULTI_LABEL_PROBLEM, Batch, TaskType, weighted
from search_spaces.cost import CLASSIFIER


def encode(tokenizer: Any, split: Split, max_length: int, stride: int) -> Encoded:
    """Sentences, or pairs of sentences, with 1 for each class that they have and 0 for the others."""
    return encode_sentences(tokenizer, split.texts, split.pairs, max_length, np.asarray(split.labels, np.float32), NAME)


def predict(rows: Encoded, logits: Sequence[np.ndarray], split: Split, labels: Sequence[str]) -> np.ndarray:
    """Which classes have a logit of at least 0, from which `Task.predict` has subtracted that of the threshold: bool
    (N, C).
    """
    return np.stack(logits) >= 0


def loss(logits_BC: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """Binary cross-entropy with whether the sentence has the class, (B, C)."""
    each_BC = F.binary_cross_entropy_with_logits(logits_BC.float(), batch["labels"].float(), reduction="none")
    return weighted(each_BC, batch, reduction)


def distributions(logits_BC: Tensor, batch: Batch) -> Tensor:
    """For each sentence and class the logits of not having and of having it, (B C, 2)."""
    logits_N = logits_BC.float().flatten()
    return torch.stack((torch.zeros_like(logits_N), logits_N), dim=1)


def problem(split: Split, labels: Sequence[str]) -> str:
    """What is wrong with the labels, or ""."""
    right = all(len(row) == len(labels) and {*row} <= {0, 1} for row in split.labels)
    return "" if right else f"a row has no 0 or 1 for each of {len(labels)} classes"


NAME = "multi_label_classification"
TYPE = TaskType(
    name=NAME,
    model=AutoModelForSequenceClassification,
    head=CLASSIFIER,
    pipeline="text-classification",
    problem_type=MULTI_LABEL_PROBLEM,
    classes=True,
    split=Split,
    metrics={"f1_micro": LABELS_MICRO_F1, "f1_macro": LABELS_MACRO_F1, "accuracy": ALL_LABELS},
    encode=encode,
    predict=predict,
    references=lambda split: split.labels,
    loss=loss,
    distributions=distributions,
    problem=problem,
)
