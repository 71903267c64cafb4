"""Answers from the logits of first and last tokens."""

import copy
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizerFast

from distill.tasks.encoding import Encoded
from distill.tasks.readers import load_task
from distill.tasks.splits import QuestionSplit
from distill.tasks.types import QUESTION_ANSWERING, encode
from distill.tasks.types.question_answering import LONGEST_ANSWER, best_answers
from tests import requirements
from tests.scores import score
from tests.tiny import tokenizer


@pytest.fixture(scope="module")
def pieces() -> BertTokenizerFast:
    return tokenizer([*"abcdefgh", "where", *(f"w{n}" for n in range(60))])


def by_hand(rows: Encoded, logits: list[np.ndarray], split: QuestionSplit, may_be_none: bool) -> list[str]:
    """Every pair of every window, one after another."""
    assert rows.sources is not None and rows.places is not None
    found = []
    for question, context in enumerate(split.contexts):
        best, text, none = -np.inf, "", np.inf
        for window in np.flatnonzero(rows.sources == question):
            first, last = logits[window]
            none = min(none, first[0] + last[0])
            places = rows.places[rows.offsets[window] : rows.offsets[window + 1]]
            inside = [token for token, place in enumerate(places) if place[0] >= 0]
            for start, end in product(inside, inside):
                if start <= end < start + LONGEST_ANSWER and first[start] + last[end] > best:
                    best, text = first[start] + last[end], context[places[start, 0] : places[end, 1]]
        found.append("" if may_be_none and none > best else text)
    return found


words = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30)


@settings(max_examples=25)
@given(st.lists(words, min_size=1, max_size=3), st.integers(0, 99), st.booleans())
def test_answers_are_the_best_pairs(
    pieces: BertTokenizerFast, contexts: list[list[str]], seed: int, may_be_none: bool
) -> None:
    joined = tuple(" ".join(context) for context in contexts)
    split = QuestionSplit(tuple("q" * len(joined)), ("where",) * len(joined), joined, ((),) * len(joined))
    rows = encode(pieces, split, 14, task_type=QUESTION_ANSWERING)
    rng = np.random.default_rng(seed)
    logits = [rng.normal(size=(2, length + 3)) for length in rows.lengths]  # padding has logits, too
    assert best_answers(rows, logits, split.contexts, may_be_none) == by_hand(rows, logits, split, may_be_none)


def test_answers_end_after_they_start_and_are_short(pieces: BertTokenizerFast) -> None:
    context = " ".join(f"w{n}" for n in range(60))
    split = QuestionSplit(("q",), ("where",), (context,), ((),))
    rows = encode(pieces, split, 100, task_type=QUESTION_ANSWERING)
    logits = np.zeros((2, int(rows.lengths[0])))
    offset = 3  # [CLS] where [SEP] w0 ...
    logits[0, offset + 50], logits[1, offset + 8] = 9, 6  # the wrong way round
    logits[0, offset + 10], logits[1, offset + 10 + LONGEST_ANSWER] = 8, 6  # a token too long
    logits[1, offset + 52] = 1
    assert best_answers(rows, [logits], split.contexts, False) == ["w50 w51 w52"]
    logits[1, offset + 9 + LONGEST_ANSWER] = 4
    assert best_answers(rows, [logits], split.contexts, False) == [
        " ".join(f"w{n}" for n in range(10, 10 + LONGEST_ANSWER))
    ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_questions_and_contexts_are_cut_where_the_tokenizer_cuts(pieces: BertTokenizerFast, side: str) -> None:
    """Some, of dialogs, keep the end of a text. The windows are the same from the other end."""
    words = [f"w{n}" for n in range(60)]
    split = QuestionSplit(("q",), (" ".join(words[30:50]),), (" ".join(words[:30]),), ((("w5", 15),),))
    cutting = copy.deepcopy(pieces)
    cutting.truncation_side = side
    rows = encode(cutting, split, 24, 4, task_type=QUESTION_ANSWERING)
    assert rows.labels is not None
    found = [cutting.convert_ids_to_tokens(row.tolist()) for row in np.split(rows.input_ids, rows.offsets[1:-1])]
    assert all(row[1:9] == (words[42:50] if side == "left" else words[30:38]) for row in found)
    windows = [words[:13], words[9:22], words[18:30]] if side == "right" else [words[17:30], words[8:21], words[:12]]
    assert [row[10:-1] for row in found] == windows
    answers = [row[first : last + 1] for row, (first, last) in zip(found, rows.labels, strict=True)]
    assert answers == [["w5"] if "w5" in window else ["[CLS]"] for window in windows]


def test_right_logits_on_the_real_files_are_right() -> None:
    """Only answers that are a part of a word piece cannot be said."""
    whole = load_task("squad", requirements.data() / "squad")
    split = whole.dev.take(range(1500))
    vocabulary = BertTokenizerFast(vocab=str(requirements.data() / "vocab" / "bert-base-uncased-vocab.txt"))
    rows = encode(vocabulary, split, 128, task_type=QUESTION_ANSWERING)
    assert rows.labels is not None and len(rows) > len(split) and rows.lengths.max() == 128
    logits = []
    for length, (first, last) in zip(rows.lengths, rows.labels, strict=True):
        logits.append(np.zeros((2, length)))
        logits[-1][0, first], logits[-1][1, last] = (9, 9) if first else (1, 1)
    right = [[text for text, _ in answers] for answers in split.answers]
    for may_be_none in (False, True):
        found = score(whole.task, best_answers(rows, logits, split.contexts, may_be_none), right)
        assert found["exact_match"].value > 0.98 and found["f1"].value > 0.98
