"""Token classification, tags of words, each predicted at the word's first token; and masked language modelling on
text without labels, whose batches `distill.training.distillation.masked` masks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoModelForTokenClassification

from distill.tasks.encoding import CHUNK, IGNORED, Encoded, flat_rows, joined_rows, tokenized_words
from distill.tasks.entities import OUTSIDE
from distill.tasks.metrics import ENTITY_F1, WORD_ACCURACY
from distill.tasks.splits import TaggedSplit
from distill.tasks.types.base import Batch, TaskType, cross_entropy
from distill.tasks.types.sentences import classes_out_of_range
from search_spaces.cost import HeadCost

TOKEN_CLASSIFICATION, MASKED_LM = "token_classification", "masked_lm"


def encode(tokenizer: Any, split: TaggedSplit, max_length: int, stride: int) -> Encoded:
    """Encode sentences, truncated to `max_length` tokens; the first token of a word gets the word's tag and index."""
    parts = []
    for start in range(0, len(split), CHUNK):
        words = split.words[start : start + CHUNK]
        out = tokenized_words(tokenizer, words, truncation=True, max_length=max_length)
        places, labels = [], []
        for row in range(len(words)):
            word_T = np.array([-1 if word is None else word for word in out.word_ids(row)], np.int32)
            word_T[1:][word_T[1:] == word_T[:-1]] = -1  # further pieces of a word
            places.append(word_T)
            tags = np.array(split.tags[start + row], np.int32)
            labels.append(np.where(word_T >= 0, tags[word_T], np.int32(IGNORED)))
        parts.append(flat_rows(out) | {"places": np.concatenate(places), "labels": np.concatenate(labels)})
    return Encoded(**joined_rows(parts), task_type=TOKEN_CLASSIFICATION)


def predict(rows: Encoded, logits: Sequence[np.ndarray], split: TaggedSplit, labels: Sequence[str]) -> list[np.ndarray]:
    """The predicted class indices of each sentence's words, from the logits (T, C) of its T tokens.

    A word without a token, because it was truncated or the tokenizer does not know its characters, gets the tag "O", or
    -1 if there is no such tag.
    """
    outside_tag = labels.index(OUTSIDE) if OUTSIDE in labels else -1
    assert rows.places is not None
    result = []
    for row, logits_TC in enumerate(logits):
        places_T = rows.places[rows.offsets[row] : rows.offsets[row + 1]]
        first_T = places_T >= 0
        tags = np.full(len(split.words[row]), outside_tag)
        tags[places_T[first_T]] = logits_TC[: len(places_T)][first_T].argmax(axis=-1)
        result.append(tags)
    return result


def loss(logits_BTC: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """Cross-entropy with the classes (B, T) of the labeled tokens."""
    return cross_entropy(distributions(logits_BTC, batch), batch["labels"][batch["labels"] != IGNORED], reduction)


def distributions(logits_BTC: Tensor, batch: Batch) -> Tensor:
    """The logits (N, C) of the labeled tokens, or in a batch without labels of all tokens except padding."""
    return logits_BTC.float()[batch["labels"] != IGNORED if "labels" in batch else batch["attention_mask"].bool()]


TYPE = TaskType(
    name=TOKEN_CLASSIFICATION,
    model=AutoModelForTokenClassification,
    head=HeadCost(),
    pipeline="token-classification",
    classes=True,
    split=TaggedSplit,
    metrics={"accuracy": WORD_ACCURACY, "f1": ENTITY_F1},
    encode=encode,
    predict=predict,
    references=lambda split: split.tags,
    loss=loss,
    distributions=distributions,
    problem=lambda split, labels: classes_out_of_range([tag for tags in split.tags for tag in tags], labels),
)
MASKED_LM_TYPE = TaskType(
    name=MASKED_LM,
    model=AutoModelForMaskedLM,
    head=HeadCost(vocabulary=True),
    pipeline="fill-mask",
    loss=loss,
    distributions=distributions,
)
