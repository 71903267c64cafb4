import os
import tracemalloc
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizerFast

from distill.tasks.encoding import (
    POOL_BATCHES,
    Encoded,
    batches,
    collate,
    encode_sentences,
    eval_batches,
    load_encoded,
    save_encoded,
)
from distill.tasks.splits import AnySplit, PassageSplit, QuestionSplit, Split, TaggedSplit
from distill.tasks.types import (
    CLASSIFICATION,
    IGNORED,
    MASKED_LM,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
    encode,
)
from tests import tiny

TEXTS = ("the door opens", "the door opens and closes and opens again", "door", "and the window closes")
PAIRS = ("and closes", "again", "the window", "opens")


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizerFast:
    words = sorted({word for text in TEXTS for word in text.split()} - {"window"})
    return tiny.tokenizer(["win", "##dow", *words])


def rows_of(lengths: list[int], labels: bool = True) -> Encoded:
    """Row i consists of tokens 100 i, 100 i + 1, ..."""
    ids = [np.arange(length) + 100 * row for row, length in enumerate(lengths)]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = np.concatenate(ids).astype(np.int32) if ids else np.empty(0, np.int32)
    return Encoded(flat, (flat % 2).astype(np.int8), offsets, np.arange(len(lengths)) if labels else None)


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_encoding_equals_the_tokenizer_s_own_padded_batch(tokenizer: BertTokenizerFast, pairs) -> None:  # type: ignore[no-untyped-def]
    encoded = encode(tokenizer, Split(TEXTS, pairs, (0, 1, 1, 0)), max_length=9, task_type=CLASSIFICATION)
    second = [] if pairs is None else [list(pairs)]
    expected = tokenizer(list(TEXTS), *second, truncation=True, max_length=9, padding="longest", return_tensors="pt")
    batch = collate(encoded, np.arange(4), tokenizer.pad_token_id)
    assert batch.pop("labels").tolist() == [0, 1, 1, 0]
    assert batch.pop("rows").tolist() == [0, 1, 2, 3]
    assert batch.keys() == expected.keys()
    for name in batch:
        assert batch[name].dtype == torch.int64
        assert torch.equal(batch[name], expected[name]), name


def test_encoding_plain_texts_has_no_labels(tokenizer: BertTokenizerFast) -> None:
    encoded = encode_sentences(tokenizer, TEXTS, None, 64)
    assert encoded.labels is None and "labels" not in collate(encoded, np.array([0]), 0)
    assert encoded.lengths.max() == 10
    assert (encoded.input_ids.dtype, encoded.token_type_ids.dtype, encoded.offsets.dtype) == (
        np.int32,
        np.int8,
        np.int64,
    )


def test_collate_pads_to_the_longest_row_of_the_batch() -> None:
    batch = collate(rows_of([3, 9, 1, 4]), np.array([3, 0, 2]), pad_id=7)
    assert batch["input_ids"].tolist() == [[300, 301, 302, 303], [0, 1, 2, 7], [200, 7, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert batch["labels"].tolist() == [3, 0, 2]


def test_numbers_are_labels_of_a_regression(tokenizer: BertTokenizerFast) -> None:
    encoded = encode(tokenizer, Split(TEXTS, PAIRS, (0.5, 4.0, 2.25, 5.0)), task_type=REGRESSION)
    assert encoded.task_type == REGRESSION
    labels = collate(encoded, np.array([3, 0]), 0)["labels"]
    assert labels.dtype == torch.float32 and labels.tolist() == [5.0, 0.5]


WORDS = (("door", "window", "\u200d", "opens"), ("the",), ("door", "again", "door", "again", "window"))


def test_tags_stand_at_the_first_piece_of_each_word(tokenizer: BertTokenizerFast) -> None:
    """The joiner has no piece, `window` two, and of the last sentence two words are cut off."""
    split = TaggedSplit(WORDS, ((1, 2, 3, 0), (4,), (1, 2, 3, 0, 1)))
    encoded = encode(tokenizer, split, max_length=5, task_type=TOKEN_CLASSIFICATION)
    assert encoded.task_type == TOKEN_CLASSIFICATION
    batch = collate(encode(tokenizer, split, max_length=9, task_type=TOKEN_CLASSIFICATION), np.array([1, 0]), 0)
    no = IGNORED
    assert batch["labels"].dtype == torch.int64
    assert batch["labels"].tolist() == [[no, 4, no, no, no, no], [no, 1, 2, no, 0, no]]
    assert encoded.places is not None and encoded.labels is not None
    assert encoded.places.tolist() == [-1, 0, 1, -1, -1, -1, 0, -1, -1, 0, 1, 2, -1]
    assert [row.tolist() for row in np.split(encoded.labels, encoded.offsets[1:-1])] == [
        [no, 1, 2, no, no],
        [no, 4, no],
        [no, 1, 2, 3, no],
    ]


CONTEXT = "the door opens and the window closes and the door closes again"
ASKED = QuestionSplit(
    ("a", "b", "c"),
    ("  which window", "the door " * 20, "again"),
    (CONTEXT, CONTEXT, CONTEXT),
    (((" window closes", 22), ("door", 4)), (("ndow clo", 25),), ()),
)


@pytest.mark.parametrize("max_length", [12, 18, 30])
def test_windows_cover_the_context_and_say_where_answers_are(tokenizer: BertTokenizerFast, max_length: int) -> None:
    encoded = encode(tokenizer, ASKED, max_length, task_type=QUESTION_ANSWERING)
    assert encoded.task_type == QUESTION_ANSWERING and encoded.lengths.max() <= max_length
    assert encoded.sources is not None and encoded.places is not None and encoded.labels is not None
    assert sorted(set(encoded.sources.tolist())) == [0, 1, 2]
    answered = set()
    for row, question in enumerate(encoded.sources):
        here = slice(encoded.offsets[row], encoded.offsets[row + 1])
        ids, types, places = encoded.input_ids[here], encoded.token_type_ids[here], encoded.places[here]
        asked = (types == 0) & (ids != tokenizer.cls_token_id) & (ids != tokenizer.sep_token_id)
        assert asked.sum() == min((3, 40, 1)[question], max_length // 3)
        inside = places[:, 0] >= 0
        assert (types[inside] == 1).all() and inside.sum() == (types == 1).sum() - 1
        for piece, (start, end) in zip(ids[inside], places[inside], strict=True):
            assert tokenizer.convert_ids_to_tokens(int(piece)).removeprefix("##") == CONTEXT[start:end]
        first, last = encoded.labels[row]
        if first:
            answered.add(question)
            assert CONTEXT[places[first, 0] : places[last, 1]] == "window closes"
        else:
            # Either there is no answer, or a part of it is in another window.
            whole = places[inside][0, 0] <= 23 and places[inside][-1, 1] >= 36
            assert (first, last) == (0, 0) and (question == 2 or not whole)
    assert answered == {0, 1}
    for question in range(3):
        spans = [
            encoded.places[encoded.offsets[row] : encoded.offsets[row + 1]]
            for row in np.flatnonzero(encoded.sources == question)
        ]
        covered = {place for span in spans for start, end in span for place in range(start, end)}
        assert covered == {place for place, letter in enumerate(CONTEXT) if letter != " "}
        for one, other in pairwise({tuple(place) for place in span if place[0] >= 0} for span in spans):
            assert len(one & other) == max_length // 3


@pytest.mark.parametrize(
    ("rows", "kind", "settings", "message"),
    [
        (Split((), None, ()), CLASSIFICATION, {}, "no rows"),
        (Split(TEXTS, None, (0, 1, 1, 0)), CLASSIFICATION, {"max_length": 2}, "max_length = 2: no room"),
        (ASKED, QUESTION_ANSWERING, {"max_length": 3}, "max_length = 3: no room"),
        (ASKED, QUESTION_ANSWERING, {"max_length": 12, "stride": -1}, "stride = -1: must be from 0 to 4, as"),
        (
            ASKED,
            QUESTION_ANSWERING,
            {"max_length": 12, "stride": 5},
            "stride = 5: must be from 0 to 4, as max_length = 12 leaves 5 to",
        ),
        (ASKED, TOKEN_CLASSIFICATION, {}, "a QuestionSplit does not hold rows for token_classification"),
        (ASKED, MASKED_LM, {}, "a QuestionSplit does not hold rows for masked_lm"),
        (ASKED, "tagging", {}, "unknown task type 'tagging'"),
    ],
)
def test_what_cannot_be_encoded(
    rows: AnySplit, kind: str, settings: dict[str, int], message: str, tokenizer: BertTokenizerFast
) -> None:
    with pytest.raises(ValueError, match=message):
        encode(tokenizer, rows, task_type=kind, **settings)


def some(kind: str, tokenizer: BertTokenizerFast) -> Encoded:
    splits = {
        "classification": Split(TEXTS, PAIRS, (0, 1, 1, 0)),
        "regression": Split(TEXTS, None, (0.5, 4.0, 2.25, 5.0)),
        "token_classification": TaggedSplit(WORDS, ((1, 2, 3, 0), (4,), (1, 2, 3, 0, 1))),
        "question_answering": ASKED,
    }
    if kind == "text":
        return encode_sentences(tokenizer, TEXTS, None, 16)
    return encode(tokenizer, splits[kind], 16, task_type=kind)


KINDS = ["classification", "regression", "token_classification", "question_answering", "text"]


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str, tokenizer: BertTokenizerFast, tmp_path: Path) -> None:
    encoded = some(kind, tokenizer)
    save_encoded(encoded, tmp_path / "rows.npz")
    loaded = load_encoded(tmp_path / "rows.npz")
    assert loaded.task_type == encoded.task_type
    for field in fields(Encoded):
        before, after = getattr(encoded, field.name), getattr(loaded, field.name)
        assert np.array_equal(before, after) if before is not None else after is None
        assert before is None or field.name == "task_type" or before.dtype == after.dtype
    assert os.listdir(tmp_path) == ["rows.npz"]
    rows = np.array([len(encoded) - 1, 0])
    for name, tensor in collate(encoded, rows, 0).items():
        assert torch.equal(tensor, collate(loaded, rows, 0)[name]) and len(tensor) == 2


@pytest.mark.parametrize("damage", ["empty", "truncated", "text", "flipped", "objects", "other arrays", "one array"])
def test_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    save_encoded(rows_of([3, 1, 4]), path)
    good = path.read_bytes()
    middle = good.index(b"NUMPY") + 130
    if damage == "objects":
        np.savez(path, input_ids=np.array([{}], dtype=object), token_type_ids=1, offsets=1)
    elif damage == "other arrays":
        np.savez(path, ids=np.arange(3))
    elif damage == "one array":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    else:
        flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
        path.write_bytes({"empty": b"", "truncated": good[:-30], "text": b"ids", "flipped": flipped}[damage])
    with pytest.raises(ValueError, match=r"rows\.npz: not a readable file"):
        load_encoded(path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"offsets": np.array([0, 3, 3, 8])}, "every row needs a token"),
        ({"offsets": np.array([1, 3, 4, 8])}, "start at 0"),
        ({"offsets": np.array([0, 3, 4, 9])}, "does not fit"),
        ({"token_type_ids": np.zeros(7, np.int8)}, "does not fit"),
        ({"labels": np.zeros(2, np.int64)}, r"3 rows of 8 tokens \(classification\), but labels of shape \(2,\)"),
        ({"places": np.zeros(8, np.int32)}, r"but labels of shape \(3,\)"),
        ({"places": np.zeros((3, 2), np.int32)}, r"but places of shape \(3, 2\)"),
        ({"sources": np.zeros(8, np.int32)}, r"but sources of shape \(8,\)"),
    ],
)
def test_arrays_are_checked(change: dict[str, np.ndarray], message: str) -> None:
    good = rows_of([3, 1, 4])
    fields = {name: getattr(good, name) for name in ("input_ids", "token_type_ids", "offsets", "labels")}
    with pytest.raises(ValueError, match=message):
        Encoded(**(fields | change))


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=80)


@given(lengths, st.integers(1, 9), st.integers(0, 40), st.integers(0, 3))
def test_batches_are_exact_reproducible_and_even(lengths: list[int], size: int, steps: int, seed: int) -> None:
    encoded = rows_of(lengths)
    found = list(batches(encoded, size, steps, seed))
    assert len(found) == steps and all(len(rows) == size for rows in found)
    again = list(batches(rows_of(lengths), size, steps, seed))
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    shorter = list(batches(encoded, size, steps // 2, seed))
    assert all(np.array_equal(a, b) for a, b in zip(shorter, found, strict=False))


@given(st.integers(1, 6), st.integers(1, 60), st.integers(1, 4))
def test_an_epoch_has_every_row_once(size: int, per_epoch: int, epochs: int) -> None:
    in_pool = min(POOL_BATCHES, per_epoch)
    count = size * (per_epoch - per_epoch % in_pool)
    found = list(batches(rows_of([1 + row % 7 for row in range(count)]), size, epochs * count // size, seed=5))
    assert Counter(np.concatenate(found).tolist()) == Counter({row: epochs for row in range(count)})


def test_batches_are_shuffled_and_grouped_by_length() -> None:
    lengths = np.random.default_rng(0).integers(5, 60, 4000).tolist()
    encoded = rows_of(lengths)
    found = list(batches(encoded, 16, 250, seed=0))
    padded = sum(16 * encoded.lengths[rows].max() for rows in found)
    real = sum(encoded.lengths[rows].sum() for rows in found)
    assert real / padded > 0.95  # 0.53 without grouping
    means = [encoded.lengths[rows].mean() for rows in found]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.25
    other = list(batches(encoded, 16, 250, seed=1))
    assert not all(np.array_equal(a, b) for a, b in zip(found, other, strict=True))


@given(lengths, st.integers(1, 9))
def test_eval_batches_cover_every_row_once(lengths: list[int], size: int) -> None:
    encoded = rows_of(lengths)
    predictions = np.full(len(lengths), -1)
    for rows in eval_batches(encoded, size):
        assert 1 <= len(rows) <= size
        assert (predictions[rows] == -1).all()
        predictions[rows] = collate(encoded, rows, 0)["labels"].numpy()
    assert predictions.tolist() == list(range(len(lengths)))
    longest = [encoded.lengths[rows].max() for rows in eval_batches(encoded, size)]
    assert longest == sorted(longest, reverse=True)


def test_bad_numbers() -> None:
    encoded = rows_of([1, 2])
    for size, steps in ((0, 1), (1, -1)):
        with pytest.raises(ValueError, match="batch_size"):
            batches(encoded, size, steps, 0)
    with pytest.raises(ValueError, match="batch_size"):
        eval_batches(encoded, 0)
    with pytest.raises(ValueError, match="no rows"):
        batches(rows_of([]), 2, 1, 0)


def test_a_long_query_takes_its_own_memory_alone(tokenizer: BertTokenizerFast) -> None:
    queries = [f"door {number % 700}" for number in range(2000)] + ["door " * 5_000]
    split = PassageSplit(tuple(queries), ("again",) * len(queries), (0.0,) * len(queries))
    tracemalloc.start()
    rows = encode(tokenizer, split, 8, task_type=REGRESSION)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6
    assert rows.groups is not None and rows.groups.tolist() == [sorted({*queries}).index(query) for query in queries]


def test_groups_are_side_by_side() -> None:
    """Training batches have whole groups, except where a batch begins or ends, and each row once an epoch."""
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(30), 4)).astype(np.int32)
    lengths = rng.integers(1, 20, 120)
    total, offsets = int(lengths.sum()), np.concatenate([[0], np.cumsum(lengths)])
    rows = Encoded(np.ones(total, np.int32), np.zeros(total, np.int8), offsets, groups=groups)
    chosen = list(batches(rows, 10, 24, seed=0))
    for epoch in (chosen[:12], chosen[12:]):
        assert sorted(np.concatenate(epoch)) == list(range(120))
    assert not np.array_equal(np.concatenate(chosen[:12]), np.concatenate(chosen[12:]))
    for batch in chosen:
        of_batch = groups[batch]
        runs = 1 + int((of_batch[1:] != of_batch[:-1]).sum())
        assert runs == len(set(of_batch)) <= 4
    assert np.array_equal(collate(rows, chosen[0], 0)["groups"].numpy(), groups[chosen[0]])
