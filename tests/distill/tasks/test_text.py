"""Encoded text in files: rows, packing, memory, and damaged files."""

import tracemalloc
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import BertTokenizerFast

from distill.tasks.encoding import Encoded, encode_sentences, training_batches
from distill.tasks.text import IDS, OFFSETS, load_text, save_text, stored_text_key

WORDS = ["one", "two", "three", "four", "five"]
ROOM = 6


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizerFast:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    return BertTokenizerFast(vocab={name: place for place, name in enumerate(names)})


def rows_of(text: Encoded) -> list[list[int]]:
    return [text.input_ids[start:end].tolist() for start, end in pairwise(text.offsets)]


def saved(paragraphs: list[str], tokenizer: BertTokenizerFast, packed: bool) -> list[list[int]]:
    with TemporaryDirectory() as folder:
        save_text(paragraphs, tokenizer, ROOM + 2, Path(folder) / "text", packed)
        return rows_of(load_text(Path(folder) / "text")) if any(paragraphs) else []


paragraph = st.lists(st.sampled_from(WORDS), max_size=15).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(st.lists(paragraph, max_size=12))
def test_a_paragraph_is_a_row(tokenizer: BertTokenizerFast, paragraphs: list[str]) -> None:
    expected = [text for text in paragraphs if text]
    if expected:
        reference = encode_sentences(tokenizer, expected, None, ROOM + 2)
        assert saved(paragraphs, tokenizer, packed=False) == rows_of(reference)


@settings(deadline=None, max_examples=200)
@given(st.lists(paragraph, max_size=12))
def test_packed_rows(tokenizer: BertTokenizerFast, paragraphs: list[str]) -> None:
    documents = [list(group) for empty, group in groupby(paragraphs, lambda text: not text) if not empty]
    rows = saved(paragraphs, tokenizer, packed=True)
    assert all(row[0] == tokenizer.cls_token_id and row[-1] == tokenizer.sep_token_id for row in rows)
    inner = [row[1:-1] for row in rows]
    assert all(1 <= len(row) <= ROOM for row in inner)
    # No token is lost or moved.
    tokens = [tokenizer.convert_tokens_to_ids(text.split()) for text in paragraphs]
    assert [token for row in inner for token in row] == [token for text in tokens for token in text]
    # No row crosses the end of a document or cuts a paragraph that fits into a row, and no two rows could be one.
    places = np.cumsum([0, *map(len, inner)]).tolist()
    start = 0
    for document in documents:
        borders = [start]
        for text in document:
            borders.append(borders[-1] + len(text.split()))
        start = borders[-1]
        assert {borders[0], borders[-1]} <= set(places)
        for first, last in pairwise(borders):
            inside = [place for place in places if first < place < last]
            if last - first <= ROOM:
                assert not inside
            else:
                assert inside == list(range(first + ROOM, last, ROOM))
    ends = set(np.cumsum([sum(len(text.split()) for text in document) for document in documents]).tolist())
    for (first, middle), (_, last) in pairwise(pairwise(places)):
        if middle not in ends:
            following = min(border for border in np.cumsum([0, *map(len, tokens)]).tolist() if border > middle)
            assert min(following, last) - first > ROOM


@pytest.mark.parametrize("around", ["one $A two", "one $A", "$A one", "$A"])
def test_special_tokens_are_those_of_the_tokenizer(around: str) -> None:
    names = {name: place for place, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    other = BertTokenizerFast(vocab=names)
    special = [(name, names[name]) for name in ("one", "two")]
    other.backend_tokenizer.post_processor = TemplateProcessing(single=around, special_tokens=special)
    texts = ["three four", "five"]
    assert saved(texts, other, packed=False) == other(texts)["input_ids"]


def test_memory_does_not_grow_with_the_text(tokenizer: BertTokenizerFast, tmp_path: Path) -> None:
    def text(paragraphs: int) -> Iterator[str]:
        return (f"{WORDS[number % 5]} " * 40 for number in range(paragraphs))

    peaks = []
    for number, size in enumerate((20_000, 40_000)):
        folder = tmp_path / str(number)
        tracemalloc.start()
        save_text(text(size), tokenizer, 128, folder, packed=True)
        encoded = load_text(folder)
        for _ in training_batches(encoded, 8, 30, 0, 0):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (folder / IDS).stat().st_size > size * 40 * 4
    # The permutation of the rows, 8 bytes a row, is the only thing that grows.
    assert peaks[1] - peaks[0] < 3 * 8 * len(encoded)


def test_keys(tokenizer: BertTokenizerFast) -> None:
    other = BertTokenizerFast(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "six": 4})
    keys = {
        stored_text_key(["a"], tokenizer, 16, False),
        stored_text_key(["a", "b"], tokenizer, 16, False),
        stored_text_key(["b", "a"], tokenizer, 16, False),
        stored_text_key(["a"], tokenizer, 17, False),
        stored_text_key(["a"], tokenizer, 16, True),
        stored_text_key(["a"], other, 16, False),
    }
    assert len(keys) == 6
    tokenizer(["one"], truncation=True, max_length=8)
    assert stored_text_key(["a"], tokenizer, 16, False) in keys
    other.truncation_side = "left"
    assert stored_text_key(["a"], other, 16, False) not in keys


def test_faults(tokenizer: BertTokenizerFast, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 tokens leave no room beside 2 special ones"):
        save_text(["one"], tokenizer, 2, tmp_path / "short")
    save_text(["one two", "three"], tokenizer, 8, tmp_path / "text")
    for damage in ((IDS, b"123"), (IDS, b""), (OFFSETS, b"\0" * 16), (OFFSETS, b"")):
        whole = (tmp_path / "text" / damage[0]).read_bytes()
        (tmp_path / "text" / damage[0]).write_bytes(damage[1])
        with pytest.raises(ValueError, match=r"text: not a readable folder of encoded text"):
            load_text(tmp_path / "text")
        (tmp_path / "text" / damage[0]).write_bytes(whole)
    assert len(load_text(tmp_path / "text")) == 2
