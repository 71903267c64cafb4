"""Extractive question answering: the first and the last token of an answer in a text are predicted separately."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForQuestionAnswering

from distill.tasks.encoding import CHUNK, Encoded, flat_rows, joined_rows
from distill.tasks.metrics import ANSWER_F1, EXACT_MATCH
from distill.tasks.splits import QuestionSplit
from distill.tasks.types.base import Batch, TaskType, cross_entropy
from search_spaces.cost import HeadCost

QUESTION_ANSWERING = "question_answering"

LONGEST_QUESTION = 64
"""The maximum number of tokens of a question, unless a third of `max_length` is less."""

LONGEST_ANSWER = 30
"""The maximum number of tokens of an answer, as in the official baselines."""


def encode(tokenizer: Any, split: QuestionSplit, max_length: int, stride: int) -> Encoded:
    """Encode questions with overlapping windows of their contexts, of which consecutive ones share `stride` tokens.

    Raises:
        ValueError: `stride` is negative, or so large that windows would not advance.
    """
    longest = min(LONGEST_QUESTION, max_length // 3)
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True) - longest
    if not 0 <= stride < room:
        raise ValueError(
            f"stride = {stride}: must be from 0 to {room - 1}, as max_length = {max_length} leaves {room} tokens "
            "beside the longest question"
        )
    parts = []
    for start in range(0, len(split), CHUNK):
        chunk = slice(start, start + CHUNK)
        out = tokenizer(
            _shortened(tokenizer, split.questions[chunk], longest),
            list(split.contexts[chunk]),
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        sources = np.array(out["overflow_to_sample_mapping"], np.int32) + start
        places, labels = [], []
        for window, source in enumerate(sources):
            of_context_T = np.array([part == 1 for part in out.sequence_ids(window)])
            places_T2 = np.where(of_context_T[:, None], np.array(out["offset_mapping"][window], np.int32), np.int32(-1))
            places.append(places_T2)
            labels.append(_answer_tokens(places_T2, split.answers[source]))
        arrays = {"places": np.concatenate(places), "labels": np.array(labels, np.int32), "sources": sources}
        parts.append(flat_rows(out) | arrays)
    return Encoded(**joined_rows(parts), task_type=QUESTION_ANSWERING)


def _shortened(tokenizer: Any, questions: Sequence[str], most: int) -> list[str]:
    """The questions without leading blanks, truncated to `most` tokens where the tokenizer truncates."""
    stripped = [question.lstrip() for question in questions]
    out = tokenizer(stripped, add_special_tokens=False, truncation=True, max_length=most, return_offsets_mapping=True)
    parts = (slice(places[0][0], places[-1][1]) if places else slice(0) for places in out["offset_mapping"])
    return [question[part] for question, part in zip(stripped, parts, strict=True)]


def _answer_tokens(places_T2: np.ndarray, answers: Sequence[tuple[str, int]]) -> tuple[int, int]:
    """The first and last token of the first answer, without surrounding blanks; (0, 0) if the window does not contain
    it completely.
    """
    inside = np.flatnonzero(places_T2[:, 0] >= 0)
    if not answers or not len(inside):
        return 0, 0
    text, start = answers[0]
    start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    starts, ends = places_T2[inside].T
    if start < starts[0] or end > ends[-1]:
        return 0, 0
    first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(starts, end) - 1
    return (int(inside[first]), int(inside[last])) if first <= last else (0, 0)


def predict(rows: Encoded, logits: Sequence[np.ndarray], split: QuestionSplit, labels: Sequence[str]) -> list[str]:
    """The text of the best answer to each question.

    Questions are predicted to be unanswerable ("") only if the split has unanswerable questions.
    """
    assert rows.sources is not None
    questions = int(rows.sources[len(logits) - 1]) + 1
    return best_answers(rows, logits, split.contexts[:questions], may_be_none=not all(split.answers))


def best_answers(rows: Encoded, logits: Sequence[np.ndarray], contexts: Sequence[str], may_be_none: bool) -> list[str]:
    """The text of the best answer to the question about each context, from the logits (2, T) of the first and last
    token in each window.

    The best answer is the span of at most `LONGEST_ANSWER` tokens, inside one window's part of the context, with the
    highest sum of first and last logit. With `may_be_none`, it is "" if that sum is below the lowest sum of the two
    logits at the first token ([CLS]) of a window.
    """
    assert rows.places is not None and rows.sources is not None
    best = np.full(len(contexts), -np.inf)
    none = np.full(len(contexts), np.inf)
    spans = np.zeros((len(contexts), 2), np.int64)
    for window, logits_2T in enumerate(logits):
        question = rows.sources[window]
        places_T2 = rows.places[rows.offsets[window] : rows.offsets[window + 1]]
        none[question] = min(none[question], logits_2T[:, 0].sum())
        inside = np.flatnonzero(places_T2[:, 0] >= 0)
        if not len(inside):
            continue
        first_S, last_S = logits_2T[:, inside]
        padded_S = np.concatenate([last_S, np.full(LONGEST_ANSWER - 1, -np.inf)])
        sums_SA = first_S[:, None] + np.lib.stride_tricks.sliding_window_view(padded_S, LONGEST_ANSWER)
        start, more = np.unravel_index(sums_SA.argmax(), sums_SA.shape)
        if sums_SA[start, more] > best[question]:
            best[question] = sums_SA[start, more]
            spans[question] = places_T2[inside[start], 0], places_T2[inside[start + more], 1]
    return [
        "" if may_be_none and none[row] > best[row] else context[slice(*spans[row])]
        for row, context in enumerate(contexts)
    ]


def loss(logits_B2T: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    """Cross-entropy with the positions of the first and last tokens (B, 2)."""
    return cross_entropy(distributions(logits_B2T, batch), batch["labels"].flatten(), reduction)


def distributions(logits_B2T: Tensor, batch: Batch) -> Tensor:
    """The logits (2 B, T) of the first and of the last token, with padding masked out."""
    logits = logits_B2T.float()
    padding_BT = batch["attention_mask"] == 0
    return logits.masked_fill(padding_BT[:, None], torch.finfo(logits.dtype).min).flatten(0, 1)


TYPE = TaskType(
    name=QUESTION_ANSWERING,
    model=AutoModelForQuestionAnswering,
    head=HeadCost(outputs=2),
    pipeline="question-answering",
    outputs=("start_logits", "end_logits"),
    output_names=("start", "end"),
    split=QuestionSplit,
    metrics={"exact_match": EXACT_MATCH, "f1": ANSWER_F1},
    encode=encode,
    predict=predict,
    references=lambda split: [[text for text, _ in answers] for answers in split.answers],
    loss=loss,
    distributions=distributions,
)
