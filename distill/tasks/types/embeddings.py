"""Sentence vectors: pooled states of a sentence encoder, which a student learns from its teacher."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel

from distill.tasks.encoding import Encoded, encode_sentences
from distill.tasks.metrics import COSINE, NEIGHBOURS
from distill.tasks.splits import SentenceSplit
from distill.tasks.types.base import Batch, TaskType
from search_spaces.cost import HeadCost

EMBEDDINGS = "embeddings"
# The key of a sentence encoder's configuration: {"mode": one of MODES, "normalize": whether vectors have length 1}.
POOLING = "sentence_pooling"
# How the states of a sentence become its vector, by the names of sentence-transformers.
MEAN, CLS, MAX, MEAN_SQRT = "mean", "cls", "max", "mean_sqrt_len_tokens"
MODES = (MEAN, CLS, MAX, MEAN_SQRT)


def pool(states_BTD: Tensor, mask_BT: Tensor, config: Any) -> Tensor:
    """The vectors (B, D) of sentences, as the configuration says, in float32."""
    pooling, states_BTD = getattr(config, POOLING), states_BTD.float()
    mask_BT1 = mask_BT[..., None].to(states_BTD.dtype)
    if pooling["mode"] == CLS:
        # The first token that is not padding, which may be on the left.
        first_B = mask_BT.argmax(dim=1)
        vectors_BD = states_BTD.gather(1, first_B[:, None, None].expand(-1, 1, states_BTD.shape[-1]))[:, 0]
    elif pooling["mode"] == MAX:
        vectors_BD = states_BTD.masked_fill(mask_BT1 == 0, torch.finfo(states_BTD.dtype).min).amax(dim=1)
    else:
        count_B1 = mask_BT1.sum(dim=1).clamp(min=1e-9)
        vectors_BD = (states_BTD * mask_BT1).sum(dim=1) / (count_B1 if pooling["mode"] == MEAN else count_B1.sqrt())
    return F.normalize(vectors_BD, dim=-1) if pooling["normalize"] else vectors_BD


def encode(tokenizer: Any, split: SentenceSplit, max_length: int, stride: int) -> Encoded:
    """Sentences without labels; `nas.preparation.data` adds the teacher's vectors."""
    return encode_sentences(tokenizer, split.texts, None, max_length, None, EMBEDDINGS)


def predict(rows: Encoded, logits: Sequence[np.ndarray], split: SentenceSplit, labels: Sequence[str]) -> np.ndarray:
    """The vector of each sentence and the teacher's: (N, 2, D)."""
    if rows.labels is None:
        raise ValueError("sentences are only scored with the vectors of their teacher")
    return np.stack([np.stack(logits), rows.labels[: len(logits)]], axis=1)


def loss(logits_BD: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """The squared distance to the vectors (B, D)."""
    distance_B = (logits_BD.float() - batch["labels"].float()).square().sum(dim=-1)
    return distance_B.sum() if reduction == "sum" else distance_B.mean()


TYPE = TaskType(
    name=EMBEDDINGS,
    model=AutoModel,
    head=HeadCost(pooled=True, outputs=0),
    pipeline="sentence-similarity",
    outputs=("last_hidden_state",),
    pool=pool,
    split=SentenceSplit,
    metrics={"cosine": COSINE, "neighbours": NEIGHBOURS},
    encode=encode,
    predict=predict,
    references=lambda split: split.texts,
    loss=loss,
)
