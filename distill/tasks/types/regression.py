"""Regression: one number for one or two sentences."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from distill.tasks.encoding import Encoded, encode_sentences
from distill.tasks.metrics import PEARSON, SPEARMAN
from distill.tasks.splits import PassageSplit, Split
from distill.tasks.types.base import Batch, TaskType
from search_spaces.cost import HeadCost


def encode(tokenizer: Any, split: Split, max_length: int, stride: int) -> Encoded:
    """Sentences, or pairs of sentences, with their numbers; the passages of a query are a group."""
    numbers = np.asarray(split.labels, np.float32)
    rows = encode_sentences(tokenizer, split.texts, split.pairs, max_length, numbers, NAME)
    if not isinstance(split, PassageSplit):
        return rows
    return replace(rows, groups=np.unique(split.texts, return_inverse=True)[1].astype(np.int32))


def predict(rows: Encoded, logits: Sequence[np.ndarray], split: Split, labels: Sequence[str]) -> np.ndarray:
    """The number of each sentence: (N,)."""
    return np.stack(logits)[:, 0]


def loss(logits_B1: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """The squared error of the numbers (B,)."""
    return F.mse_loss(logits_B1.float()[:, 0], batch["labels"].float(), reduction=reduction)


NAME = "regression"
TYPE = TaskType(
    name=NAME,
    model=AutoModelForSequenceClassification,
    head=HeadCost(pooled=True, outputs=1),
    pipeline="text-classification",
    output_names=("score",),
    problem_type="regression",
    split=Split,
    metrics={"pearson": PEARSON, "spearmanr": SPEARMAN},
    encode=encode,
    predict=predict,
    references=lambda split: split.labels,
    loss=loss,
    problem=lambda split, labels: "" if all(map(math.isfinite, split.labels)) else "a label is not finite",
)
