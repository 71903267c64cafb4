"""Classification of one or two sentences, into one class or any number of them, and regression: one number for them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from distill.tasks import metrics
from distill.tasks.encoding import Encoded, encode_sentences
from distill.tasks.splits import PassageSplit, Split
from distill.tasks.types.base import MULTI_LABEL_PROBLEM, Batch, TaskType, cross_entropy, weighted
from search_spaces.cost import CLASSIFIER, HeadCost

CLASSIFICATION, MULTI_LABEL, REGRESSION = "classification", "multi_label_classification", "regression"


def encode(
    tokenizer: Any, split: Split, max_length: int, stride: int, *, task_type: str, labels: type[np.generic]
) -> Encoded:
    """Sentences, or pairs of sentences, with their labels of this type; the passages of a query are a group."""
    values = np.asarray(split.labels, labels)
    rows = encode_sentences(tokenizer, split.texts, split.pairs, max_length, values, task_type)
    if not isinstance(split, PassageSplit):
        return rows
    # NumPy's arrays of texts take the memory of the longest one for each.
    numbers = {text: number for number, text in enumerate(sorted({*split.texts}))}
    return replace(rows, groups=np.array([numbers[text] for text in split.texts], np.int32))


def of_classes(logits_BC: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """Cross-entropy with the classes (B,)."""
    if "weights" in batch:
        return weighted(F.cross_entropy(logits_BC.float(), batch["labels"], reduction="none"), batch, reduction)
    return cross_entropy(logits_BC.float(), batch["labels"], reduction)


def of_each_class(logits_BC: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """Binary cross-entropy with whether the sentence has the class, (B, C)."""
    each_BC = F.binary_cross_entropy_with_logits(logits_BC.float(), batch["labels"].float(), reduction="none")
    return weighted(each_BC, batch, reduction)


def of_numbers(logits_B1: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """The squared error of the numbers (B,)."""
    return F.mse_loss(logits_B1.float()[:, 0], batch["labels"].float(), reduction=reduction)


def having_or_not(logits_BC: Tensor, batch: Batch) -> Tensor:
    """For each sentence and class the logits of not having and of having it, (B C, 2)."""
    logits_N = logits_BC.float().flatten()
    return torch.stack((torch.zeros_like(logits_N), logits_N), dim=1)


def classes_out_of_range(indices: Sequence[int], labels: Sequence[str]) -> str:
    """A description of class indices that are out of range, or "" if there are none."""
    if set(indices) <= set(range(len(labels))):
        return ""
    return f"classes {min(indices)} to {max(indices)}, of {len(labels)}"


def not_of_each_class(split: Split, labels: Sequence[str]) -> str:
    """What is wrong with the labels of rows with any number of classes, or ""."""
    right = all(len(row) == len(labels) and {*row} <= {0, 1} for row in split.labels)
    return "" if right else f"a row has no 0 or 1 for each of {len(labels)} classes"


_COMMON: Any = {
    "model": AutoModelForSequenceClassification,
    "pipeline": "text-classification",
    "split": Split,
    "references": lambda split: split.labels,
}
TYPES = (
    TaskType(
        name=CLASSIFICATION,
        **_COMMON,
        head=CLASSIFIER,
        classes=True,
        metrics={
            "accuracy": metrics.CLASS_ACCURACY,
            "f1": metrics.CLASS_F1,
            "f1_macro": metrics.MACRO_F1,
            "matthews": metrics.MATTHEWS,
            "matthews_correlation": metrics.MATTHEWS,
        },
        encode=partial(encode, task_type=CLASSIFICATION, labels=np.int64),
        predict=lambda rows, logits, split, labels: np.stack(logits).argmax(axis=-1),
        loss=of_classes,
        distributions=lambda logits, batch: logits.float(),
        problem=lambda split, labels: classes_out_of_range(split.labels, labels),
    ),
    TaskType(
        name=REGRESSION,
        **_COMMON,
        head=HeadCost(pooled=True, outputs=1),
        output_names=("score",),
        problem_type="regression",
        metrics={"pearson": metrics.PEARSON, "spearmanr": metrics.SPEARMAN},
        encode=partial(encode, task_type=REGRESSION, labels=np.float32),
        predict=lambda rows, logits, split, labels: np.stack(logits)[:, 0],
        loss=of_numbers,
        problem=lambda split, labels: "" if all(map(math.isfinite, split.labels)) else "a label is not finite",
    ),
    TaskType(
        name=MULTI_LABEL,
        **_COMMON,
        head=CLASSIFIER,
        problem_type=MULTI_LABEL_PROBLEM,
        classes=True,
        metrics={
            "f1_micro": metrics.LABELS_MICRO_F1,
            "f1_macro": metrics.LABELS_MACRO_F1,
            "accuracy": metrics.ALL_LABELS,
        },
        encode=partial(encode, task_type=MULTI_LABEL, labels=np.float32),
        # `Task.predict` has subtracted the logit of the threshold.
        predict=lambda rows, logits, split, labels: np.stack(logits) >= 0,
        loss=of_each_class,
        distributions=having_or_not,
        problem=not_of_each_class,
    ),
)
