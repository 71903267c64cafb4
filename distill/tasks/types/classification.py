"""Classification of one or two sentences."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from distill.tasks.encoding import Encoded, encode_sentences
from distill.tasks.metrics import CLASS_ACCURACY, CLASS_F1, MACRO_F1, MATTHEWS
from distill.tasks.splits import Split
from distill.tasks.types.base import Batch, TaskType, cross_entropy, weighted
from search_spaces.cost import CLASSIFIER


def encode(tokenizer: Any, split: Split, max_length: int, stride: int) -> Encoded:
    """Sentences, or pairs of sentences, with their class indices."""
    return encode_sentences(tokenizer, split.texts, split.pairs, max_length, np.asarray(split.labels, np.int64), NAME)


def predict(rows: Encoded, logits: Sequence[np.ndarray], split: Split, labels: Sequence[str]) -> np.ndarray:
    """The most likely class of each sentence: int64 (N,)."""
    return np.stack(logits).argmax(axis=-1)


def loss(logits_BC: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """Cross-entropy with the classes (B,)."""
    if "weights" in batch:
        return weighted(F.cross_entropy(logits_BC.float(), batch["labels"], reduction="none"), batch, reduction)
    return cross_entropy(logits_BC.float(), batch["labels"], reduction)


def outside(indices: Sequence[int], labels: Sequence[str]) -> str:
    """A description of class indices that are out of range, or "" if there are none."""
    if set(indices) <= set(range(len(labels))):
        return ""
    return f"classes {min(indices)} to {max(indices)}, of {len(labels)}"


NAME = "classification"
TYPE = TaskType(
    name=NAME,
    model=AutoModelForSequenceClassification,
    head=CLASSIFIER,
    pipeline="text-classification",
    classes=True,
    split=Split,
    metrics={
        "accuracy": CLASS_ACCURACY,
        "f1": CLASS_F1,
        "f1_macro": MACRO_F1,
        "matthews": MATTHEWS,
        "matthews_correlation": MATTHEWS,
    },
    encode=encode,
    predict=predict,
    references=lambda split: split.labels,
    loss=loss,
    distributions=lambda logits, batch: logits.float(),
    problem=lambda split, labels: outside(split.labels, labels),
)
