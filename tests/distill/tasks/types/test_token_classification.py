"""Tags from the logits of tokens."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import BertTokenizerFast, RobertaTokenizerFast

from distill.tasks.readers import load_task
from distill.tasks.splits import TaggedSplit
from distill.tasks.types import TOKEN_CLASSIFICATION, encode
from distill.tasks.types.token_classification import predict
from tests import requirements
from tests.scores import score
from tests.tiny import tokenizer


@pytest.fixture(scope="module")
def pieces() -> BertTokenizerFast:
    return tokenizer(["ann", "peter", "blue", "##s", "it"])


words = st.lists(st.sampled_from(["Ann", "Peter", "blues", "it", "none", "\u200d"]), min_size=1, max_size=12)


@given(st.lists(words, min_size=1, max_size=6), st.integers(4, 10), st.integers(0, 5))
def test_words_without_a_token_are_outside(
    pieces: BertTokenizerFast, sentences: list[list[str]], max_length: int, padding: int
) -> None:
    """Against a plain count of pieces; what stands in the padding does not matter."""
    split = TaggedSplit(tuple(map(tuple, sentences)), tuple((0,) * len(words) for words in sentences))
    rows = encode(pieces, split, max_length, task_type=TOKEN_CLASSIFICATION)
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(length + padding, 4)) for length in rows.lengths]
    tags = ("O", "B-x", "I-x", "B-y")
    for row, chosen in enumerate(predict(rows, logits, split, tags)):
        place, expected = 1, []
        for word in sentences[row]:
            count = {"blues": 2, "\u200d": 0}.get(word, 1)
            seen = count and place < max_length - 1
            expected.append(int(logits[row][place].argmax()) if seen else 0)
            place += count
        assert chosen.tolist() == expected
    assert {int(tag) for row in predict(rows, logits, split, ("a", "b", "c", "d")) for tag in row} >= (
        {-1} if any("\u200d" in sentence for sentence in sentences) else set()
    )


@pytest.mark.parametrize("first_too", [False, True])
def test_words_have_the_tokens_that_they_have_in_text(first_too: bool) -> None:
    """Also those of byte-level tokenizers, whose tokens contain the space before a word."""
    text = "new york is new"
    trainer = BpeTrainer(vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False)
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trained.train_from_iterator([text] * 50, trainer)
    parts = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in parts["merges"]]
    byte_level = RobertaTokenizerFast(vocab=parts["vocab"], merges=merges, add_prefix_space=first_too)
    split = TaggedSplit((tuple(text.split()),), ((1, 2, 0, 0),))
    rows = encode(byte_level, split, 32, task_type=TOKEN_CLASSIFICATION)
    assert rows.input_ids.tolist() == byte_level(text)["input_ids"]
    assert rows.labels is not None and rows.labels[rows.labels >= 0].tolist() == [1, 2, 0, 0]


def test_right_logits_on_the_real_files_are_right() -> None:
    data = load_task("wnut17", requirements.data() / "wnut17")
    vocabulary = BertTokenizerFast(vocab=str(requirements.data() / "vocab" / "bert-base-uncased-vocab.txt"))
    rows = encode(vocabulary, data.dev, 128, task_type=TOKEN_CLASSIFICATION)
    assert rows.labels is not None
    one = np.eye(len(data.task.labels))
    logits = [one[np.maximum(rows.labels[a:b], 0)] for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)]
    found = score(data.task, predict(rows, logits, data.dev, data.task.labels), data.dev.tags)
    assert {name: value.value for name, value in found.items()} == {"f1": 1.0, "accuracy": 1.0}
    short = encode(vocabulary, data.dev, 12, task_type=TOKEN_CLASSIFICATION)
    logits = [one[np.maximum(short.labels[a:b], 0)] for a, b in zip(short.offsets, short.offsets[1:], strict=False)]  # type: ignore[index]
    cut = score(data.task, predict(short, logits, data.dev, data.task.labels), data.dev.tags)
    assert 0.5 < cut["f1"].value < 0.95 and cut["f1"].standard_error > 0
