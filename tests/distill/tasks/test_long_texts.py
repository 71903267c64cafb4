"""Texts of more than `max_length` tokens, against windows that transformers makes and logits by hand."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from distill.tasks.encoding import Encoded, collate, joined, take
from distill.tasks.splits import AnySplit, QuestionSplit, SentenceSplit, Split, TaggedSplit
from distill.tasks.task import Task
from distill.tasks.types import (
    CLASSIFICATION,
    EMBEDDINGS,
    MULTI_LABEL,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
    encode,
)
from distill.training.evaluation import EvalSet, batch_logits, comparable_outputs, split_batches
from foundation.errors import UserError
from tests.tiny import SIZES, WORDS, inputs, shaken, tokenizer

LENGTH = 12
# With every number of tokens from 0 on, some of which end where a window does.
TEXTS = tuple(" ".join(WORDS[(3 * size + place) % 45] for place in range(size)) for size in range(40))
LABELS = {
    CLASSIFICATION: tuple(size % 3 for size in range(40)),
    REGRESSION: tuple(size / 7 for size in range(40)),
    MULTI_LABEL: tuple((size % 2, size % 3 % 2, 1) for size in range(40)),
}


@pytest.fixture
def pieces() -> BertTokenizerFast:
    return tokenizer()


def ids_of(rows: Encoded) -> list[list[int]]:
    return [row.tolist() for row in np.split(rows.input_ids, rows.offsets[1:-1])]


@pytest.mark.parametrize("template", ["[CLS] $A [SEP]", "$A [SEP] [CLS]", "[CLS] $A"])
@pytest.mark.parametrize("stride", [None, 0, 8])
def test_windows_are_those_of_transformers(template: str, stride: int | None, pieces: BertTokenizerFast) -> None:
    special = [("[CLS]", pieces.cls_token_id), ("[SEP]", pieces.sep_token_id)]
    pieces.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    split = Split(TEXTS, None, LABELS[CLASSIFICATION])
    rows = encode(pieces, split, LENGTH, stride, task_type=CLASSIFICATION, long_texts="windows")
    expected = pieces(
        list(TEXTS),
        truncation=True,
        max_length=LENGTH,
        stride=LENGTH // 3 if stride is None else stride,
        return_overflowing_tokens=True,
    )
    assert ids_of(rows) == expected["input_ids"] and len(rows) > 2 * len(TEXTS)
    assert rows.sources is not None and rows.labels is not None
    assert rows.sources.tolist() == expected["overflow_to_sample_mapping"]
    assert rows.labels.tolist() == [LABELS[CLASSIFICATION][source] for source in rows.sources]
    assert rows.examples == len(TEXTS)


def test_both_ends(pieces: BertTokenizerFast) -> None:
    """A quarter of the 10 tokens beside the special ones, rounded up, is from the beginning."""
    split = Split(TEXTS, None, LABELS[CLASSIFICATION])
    rows = encode(pieces, split, LENGTH, task_type=CLASSIFICATION, long_texts="head_tail")
    whole = [text.split() for text in TEXTS]
    read = [words if len(words) <= 10 else words[:3] + words[-7:] for words in whole]
    assert ids_of(rows) == pieces([" ".join(words) for words in read])["input_ids"]
    assert rows.sources is None and rows.labels is not None and rows.labels.tolist() == list(split.labels)


@pytest.mark.parametrize("kind", LABELS)
def test_scores_are_those_of_mean_logits(kind: str, pieces: BertTokenizerFast, accelerator: Accelerator) -> None:
    """Of whole splits and of the first texts; a text counts once, however many windows it has."""
    numbers = kind == REGRESSION
    task = Task("t", () if numbers else ("a", "b", "c"), kind, ("pearson" if numbers else "f1_macro",))
    split = Split(TEXTS, None, LABELS[kind])
    rows = encode(pieces, split, LENGTH, task_type=kind, long_texts="windows")
    torch.manual_seed(0)
    config = BertConfig(**SIZES, num_labels=1 if numbers else 3, problem_type=task.type.problem_type)
    model: nn.Module = shaken(BertForSequenceClassification(config).eval(), scale=0.5)
    assert rows.sources is not None
    with torch.no_grad():
        parts = [model(**inputs(collate(rows, np.array([row]), 0))).logits[0].numpy() for row in range(len(rows))]
    means = np.array([np.mean([parts[row] for row in np.flatnonzero(rows.sources == text)], 0) for text in range(40)])
    expected = {CLASSIFICATION: means.argmax(1), REGRESSION: means[:, 0], MULTI_LABEL: means >= 0}[kind]
    eval_set = EvalSet(task, split, rows, 0)
    for first in (None, 17):
        np.testing.assert_allclose(eval_set.predictions(model, accelerator, first), expected[:first], atol=1e-5)
    assert all(len(each) == 40 for each in eval_set.contributions(model, accelerator).values())
    batches = split_batches(rows, 0)
    logits = batch_logits(model, batches, accelerator=accelerator)
    outputs_NC = comparable_outputs(logits, batches, task.type, rows.sources)
    by_hand = comparable_outputs([torch.from_numpy(means)], [{}], task.type)
    np.testing.assert_allclose(outputs_NC, by_hand, atol=1e-5)


def test_windows_are_rows_to_learn_from(pieces: BertTokenizerFast) -> None:
    split = Split(TEXTS, None, LABELS[REGRESSION])
    rows = encode(pieces, split, LENGTH, task_type=REGRESSION, long_texts="windows")
    some = take(rows, np.arange(5, 30))
    assert some.sources is not None and rows.sources is not None
    assert some.sources.tolist() == rows.sources[5:30].tolist()
    assert ids_of(joined([rows, some])) == ids_of(rows) + ids_of(rows)[5:30]


@pytest.mark.parametrize(
    ("split", "kind", "what"),
    [
        (Split(TEXTS, TEXTS, LABELS[CLASSIFICATION]), CLASSIFICATION, "pairs of texts"),
        (SentenceSplit(TEXTS), EMBEDDINGS, "rows for embeddings"),
        (TaggedSplit((("w1",),), ((0,),)), TOKEN_CLASSIFICATION, "rows for token_classification"),
        (QuestionSplit(("0",), ("w1",), ("w2",), ((),)), QUESTION_ANSWERING, "pairs of texts"),
    ],
)
def test_other_rows_are_refused(split: AnySplit, kind: str, what: str, pieces: BertTokenizerFast) -> None:
    with pytest.raises(UserError, match=rf'^long texts: "windows" is for single texts .*; choose "cut" for {what}$'):
        encode(pieces, split, LENGTH, task_type=kind, long_texts="windows")


def test_windows_that_do_not_advance(pieces: BertTokenizerFast) -> None:
    split = Split(TEXTS, None, LABELS[CLASSIFICATION])
    with pytest.raises(ValueError, match=r"^stride = 10: must be below the 10 tokens of text of max_length = 12"):
        encode(pieces, split, LENGTH, 10, task_type=CLASSIFICATION, long_texts="windows")
