"""What a task predicts: the shapes of its labels and logits, its model, and its loss.

For B sentences of T tokens and C classes:

kind                  labels                                            logits
classification        (B,) int64                                        (B, C)
regression            (B,) float32                                      (B, 1)
token_classification  (B, T) int64, IGNORED where nothing is predicted  (B, T, C)
question_answering    (B, 2) int64, the answer's first and last token,  (B, 2, T), of first and last
                      both 0 (the first token) where there is none
masked_lm             as token_classification, the classes are the vocabulary
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

CLASSIFICATION = "classification"
REGRESSION = "regression"
TOKEN_CLASSIFICATION = "token_classification"
QUESTION_ANSWERING = "question_answering"
MASKED_LM = "masked_lm"

IGNORED = -100

MODELS: dict[str, Any] = {
    CLASSIFICATION: AutoModelForSequenceClassification,
    REGRESSION: AutoModelForSequenceClassification,
    TOKEN_CLASSIFICATION: AutoModelForTokenClassification,
    QUESTION_ANSWERING: AutoModelForQuestionAnswering,
    MASKED_LM: AutoModelForMaskedLM,
}


def logits_and_kind(outputs: Any, config: Any) -> tuple[Tensor, str]:
    """The logits of a Hugging Face model's output in the shape of its kind, and that kind; masked language models are
    told from taggers by nothing but their classes.
    """
    if "start_logits" in outputs:
        return torch.stack((outputs.start_logits, outputs.end_logits), dim=1), QUESTION_ANSWERING
    if outputs.logits.dim() == 3:
        return outputs.logits, TOKEN_CLASSIFICATION
    return outputs.logits, REGRESSION if config.problem_type == REGRESSION else CLASSIFICATION


def hard_loss(logits: Tensor, batch: dict[str, Tensor], kind: str, reduction: str = "mean") -> Tensor:
    """The loss with the labels of `batch`, in float32: mean cross-entropy over sentences, labelled tokens, or (mean of
    both) first and last tokens, none of which is padding; of a regression the mean square error. 0 where no labels are.
    `reduction` is "mean", or "sum" in place of the mean.
    """
    labels = batch["labels"]
    if kind == REGRESSION:
        return F.mse_loss(logits.float()[:, 0], labels.float(), reduction=reduction)
    rows = distributions(logits, batch, kind)
    if kind in (TOKEN_CLASSIFICATION, MASKED_LM):
        labels = labels[labels != IGNORED]
    if not len(rows):
        return rows.sum()
    return F.cross_entropy(rows, labels.flatten(), reduction=reduction)


def distributions(logits: Tensor, batch: dict[str, Tensor], kind: str) -> Tensor:
    """What is predicted as logits of distributions, (N, choices), in float32: a row for each sentence; each labelled
    token (without labels, each that is no padding); or the first and the last token of an answer, where padding
    is no choice.

    Raises:
        ValueError: a regression predicts no distribution.
    """
    if kind == REGRESSION:
        raise ValueError("a regression predicts a number, no distribution")
    logits = logits.float()
    if kind in (TOKEN_CLASSIFICATION, MASKED_LM):
        return logits[batch["labels"] != IGNORED if "labels" in batch else batch["attention_mask"].bool()]
    if kind == QUESTION_ANSWERING:
        padding_BT = batch["attention_mask"] == 0
        return logits.masked_fill(padding_BT[:, None], torch.finfo(logits.dtype).min).flatten(0, 1)
    return logits
