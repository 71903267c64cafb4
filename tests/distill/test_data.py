import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizerFast

from distill.data import (
    POOL_BATCHES,
    Encoded,
    batches,
    collate,
    encode,
    eval_batches,
    load_encoded,
    save_encoded,
)
from distill.tasks import Split

TEXTS = ("the door opens", "the door opens and closes and opens again", "door", "and the window closes")
PAIRS = ("and closes", "again", "the window", "opens")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizerFast:
    folder = tmp_path_factory.mktemp("tokenizer")
    words = sorted({word for text in TEXTS for word in text.split()} - {"window"})
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "win", "##dow", *words])
    )
    BertWordPieceTokenizer(str(folder / "vocab.txt")).save(str(folder / "tokenizer.json"))
    return BertTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def rows_of(lengths: list[int], labels: bool = True) -> Encoded:
    """Row i consists of tokens 100 i, 100 i + 1, ..."""
    ids = [np.arange(length) + 100 * row for row, length in enumerate(lengths)]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = np.concatenate(ids).astype(np.int32) if ids else np.empty(0, np.int32)
    return Encoded(flat, (flat % 2).astype(np.int8), offsets, np.arange(len(lengths)) if labels else None)


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_encoding_equals_the_tokenizer_s_own_padded_batch(tokenizer: BertTokenizerFast, pairs) -> None:  # type: ignore[no-untyped-def]
    encoded = encode(tokenizer, Split(TEXTS, pairs, (0, 1, 1, 0)), max_length=9)
    second = [] if pairs is None else [list(pairs)]
    expected = tokenizer(
        list(TEXTS), *second, truncation=True, max_length=9, padding="longest", return_tensors="pt"
    )
    batch = collate(encoded, np.arange(4), tokenizer.pad_token_id)
    assert batch.pop("labels").tolist() == [0, 1, 1, 0]
    assert batch.keys() == expected.keys()
    for name in batch:
        assert batch[name].dtype == torch.int64
        assert torch.equal(batch[name], expected[name]), name


def test_encoding_plain_texts_has_no_labels(tokenizer: BertTokenizerFast) -> None:
    encoded = encode(tokenizer, TEXTS)
    assert encoded.labels is None and "labels" not in collate(encoded, np.array([0]), 0)
    assert encoded.lengths.max() == 10
    assert (encoded.input_ids.dtype, encoded.token_type_ids.dtype, encoded.offsets.dtype) == (
        np.int32,
        np.int8,
        np.int64,
    )


def test_encoding_refuses_what_cannot_work(tokenizer: BertTokenizerFast) -> None:
    with pytest.raises(ValueError, match="max_length = 2"):
        encode(tokenizer, TEXTS, max_length=2)
    with pytest.raises(ValueError, match="no rows"):
        encode(tokenizer, [])


def test_collate_pads_to_the_longest_row_of_the_batch() -> None:
    batch = collate(rows_of([3, 9, 1, 4]), np.array([3, 0, 2]), pad_id=7)
    assert batch["input_ids"].tolist() == [[300, 301, 302, 303], [0, 1, 2, 7], [200, 7, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert batch["labels"].tolist() == [3, 0, 2]


@pytest.mark.parametrize("labels", [True, False])
def test_round_trip(labels: bool, tmp_path: Path) -> None:
    encoded = rows_of([3, 1, 4], labels)
    save_encoded(encoded, tmp_path / "rows.npz")
    loaded = load_encoded(tmp_path / "rows.npz")
    for name in ("input_ids", "token_type_ids", "offsets", "labels"):
        before, after = getattr(encoded, name), getattr(loaded, name)
        assert np.array_equal(before, after) if before is not None else after is None
        assert before is None or before.dtype == after.dtype
    assert os.listdir(tmp_path) == ["rows.npz"]


@pytest.mark.parametrize(
    "damage", ["empty", "truncated", "text", "flipped", "objects", "other arrays", "one array"]
)
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
        ({"labels": np.zeros(2, np.int64)}, "3 rows, but labels"),
    ],
)
def test_arrays_are_checked(change: dict[str, np.ndarray], message: str) -> None:
    good = rows_of([3, 1, 4])
    fields = {name: getattr(good, name) for name in ("input_ids", "token_type_ids", "offsets", "labels")}
    with pytest.raises(ValueError, match=message):
        Encoded(**(fields | change))


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=80)


@given(lengths, st.integers(1, 9), st.integers(0, 40), st.integers(0, 3))
def test_batches_are_exact_reproducible_and_even(
    lengths: list[int], size: int, steps: int, seed: int
) -> None:
    encoded = rows_of(lengths)
    found = batches(encoded, size, steps, seed)
    assert len(found) == steps and all(len(rows) == size for rows in found)
    again = batches(rows_of(lengths), size, steps, seed)
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    shorter = batches(encoded, size, steps // 2, seed)
    assert all(np.array_equal(a, b) for a, b in zip(shorter, found, strict=False))


@given(st.integers(1, 6), st.integers(1, 60), st.integers(1, 4))
def test_an_epoch_has_every_row_once(size: int, per_epoch: int, epochs: int) -> None:
    in_pool = min(POOL_BATCHES, per_epoch)
    count = size * (per_epoch - per_epoch % in_pool)
    found = batches(rows_of([1 + row % 7 for row in range(count)]), size, epochs * count // size, seed=5)
    assert Counter(np.concatenate(found).tolist()) == Counter({row: epochs for row in range(count)})


def test_batches_are_shuffled_and_grouped_by_length() -> None:
    lengths = np.random.default_rng(0).integers(5, 60, 4000).tolist()
    encoded = rows_of(lengths)
    found = batches(encoded, 16, 250, seed=0)
    padded = sum(16 * encoded.lengths[rows].max() for rows in found)
    real = sum(encoded.lengths[rows].sum() for rows in found)
    assert real / padded > 0.95  # 0.53 without grouping
    means = [encoded.lengths[rows].mean() for rows in found]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.25
    other = batches(encoded, 16, 250, seed=1)
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
