"""What is lost of rows, or shared between them."""

from typing import Any

import pytest

from distill.tasks.row_checks import notes
from distill.tasks.splits import Split, TaggedSplit
from tests import tiny


@pytest.fixture
def tokenizer() -> Any:
    return tiny.tokenizer("abcdefgh")


def rows(*texts: str, pairs: tuple[str, ...] | None = None) -> Split:
    return Split(texts, pairs, tuple(index % 2 for index in range(len(texts))))


def test_nothing_to_say(tokenizer: Any) -> None:
    assert notes(tokenizer, rows("a b", "c"), rows("b a"), 4, 2) == []


def test_rows_that_are_cut(tokenizer: Any) -> None:
    long = [" ".join("abcdefgh"[:length]) for length in (1, 2, 3, 4, 5, 6, 7, 8)]
    assert notes(tokenizer, rows(*long), rows("h"), 8, 2) == [
        "25.0% of the training rows have more than 8 tokens and are cut (for other ways, see long_texts); 95 % of them "
        "have at most 10"
    ]
    assert "and are read in windows; 95 %" in notes(tokenizer, rows(*long), rows("h"), 8, 2, "windows")[0]
    words = TaggedSplit((tuple("abcdefgh"),), (tuple(range(8)),))
    assert "100.0% of the training rows have more than 9 tokens" in notes(tokenizer, words, words, 9)[1]
    pairs = rows("a b", pairs=("c d e",))
    assert "100.0% of the training rows have more than 7 tokens" in notes(tokenizer, pairs, rows("h"), 7)[0]


def test_dev_rows_that_are_learned(tokenizer: Any) -> None:
    said = notes(tokenizer, rows("a", "b", "c"), rows("c", "d", "a"), 8)
    assert said == ["2 of 3 dev rows also occur among the training rows: scores are too high"]
    assert not notes(tokenizer, rows("a", pairs=("b",)), rows("a", pairs=("c",)), 8)


def test_unknown_tokens_and_segments(tokenizer: Any) -> None:
    assert notes(tokenizer, rows("x a b"), rows("b"), 8) == [
        "20.0% of the tokens of the training rows are unknown to the tokenizer"
    ]
    assert notes(tokenizer, rows("a", pairs=("b",)), rows("b", pairs=("a",)), 8, 1) == [
        "the rows are pairs, and the model has one segment: it does not tell first from second texts"
    ]
