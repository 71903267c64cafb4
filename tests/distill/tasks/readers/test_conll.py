"""Words and tags from files and from the hub's tables, and back from a model's logits."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from transformers import BertTokenizerFast

from distill.tasks.encoding import encode
from distill.tasks.metrics import score
from distill.tasks.readers import load_task
from distill.tasks.readers.conll import HUB, from_columns, load, predicted_tags, read, tags_of
from distill.tasks.readers.hub import columns
from distill.tasks.task import TaggedSplit, Task, TaskError
from tests.distill.real import DATA, needs_data
from tests.tiny import tokenizer

TRAIN = """-DOCSTART- -X- O O

EU NNP I-NP B-ORG
rejects VBZ I-VP O
it PRP I-NP O

Peter NNP I-NP B-PER
Blackburn NNP I-NP I-PER


BRUSSELS NNP I-NP B-LOC
"""
DEV = "Ann\tB-PER\r\nlives\tO\r\n\r\nHere\tO\r\n\u00a0\tO"


def folder_of(
    folder: Path, train: str = TRAIN, dev: str = DEV, names: tuple[str, str] = ("train.txt", "dev.txt")
) -> Path:
    for name, content in zip(names, (train, dev), strict=True):
        (folder / name).write_bytes(content.encode())
    return folder


@pytest.mark.parametrize("names", [("train.txt", "dev.conll"), ("train.conll", "valid.txt")])
def test_columns_by_blanks_or_tabs(tmp_path: Path, names: tuple[str, str]) -> None:
    data = load("conll2003", folder_of(tmp_path, names=names))
    tags = ("O", "B-LOC", "B-ORG", "B-PER", "I-PER")
    assert data.task == Task("conll2003", tags, "token_classification", ("f1", "accuracy"))
    assert data.dev == TaggedSplit((("Ann", "lives"), ("Here", "\u00a0")), ((3, 0), (0, 0)))
    sentences = {("EU", "rejects", "it"): (2, 0, 0), ("Peter", "Blackburn"): (3, 4), ("BRUSSELS",): (1,)}
    words, tags_ = data.train.words + data.search.words, data.train.tags + data.search.tags
    assert dict(zip(words, tags_, strict=True)) == sentences
    assert data == load_task("conll2003", tmp_path)


def test_tags_that_are_no_entities_are_scored_by_accuracy(tmp_path: Path) -> None:
    data = load("conll", folder_of(tmp_path, "a DET\nb NOUN\n\nc NOUN\n", "a NOUN\n"))
    assert (data.task.labels, data.task.metrics) == (("DET", "NOUN"), ("accuracy",))


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        (TRAIN, "Ann B-PER\nX B-PRE\n", "dev.txt:2: unknown tag 'B-PRE'; did you mean 'B-PER'? (in training: O,"),
        (TRAIN, "Ann B-PER\nlives\n", "dev.txt:2: needs a word and its tag"),
        (TRAIN, "Ann\tB-PER\n\tO\n", "dev.txt:2: needs a word and its tag"),
        (TRAIN, "Ann\t\n", "dev.txt:1: needs a word and its tag"),
        (TRAIN, "\n\n", "dev.txt: no sentences"),
        (TRAIN, "-DOCSTART- -X- O\n", "dev.txt: no sentences"),
        ("", "Ann O\n", "train.txt: no sentences"),
        ("a O\n\nb O\n", "a O\n", "train.txt: Task 'conll': needs two or more distinct labels, not ('O',)"),
        ("a O\nb B-x\n", "a O\n", "1 training rows are too few"),
    ],
)
def test_faults_are_named(train: str, dev: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError) as fault:
        load("conll", folder_of(tmp_path, train, dev))
    assert message in str(fault.value) and "\n" not in str(fault.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"has none of the files train.conll, train.txt"):
        load("conll", tmp_path)
    with pytest.raises(TaskError, match="'conll' is of your own files: give their folder"):
        load("conll")
    with pytest.raises(TaskError, match="from the hub"):
        load("wnut17")


@pytest.mark.parametrize("name", HUB)
@pytest.mark.usefixtures("hub_cache")
def test_tables_of_the_hub(name: str, tmp_path: Path) -> None:
    tags = HUB[name][1]
    table = pyarrow.table(
        {"id": ["0", "1", "2"], "tokens": [["EU", "it"], [], ["Ann"]], "ner_tags": [[1, 0], [], [len(tags) - 1]]}
    )
    parquet.write_table(table, tmp_path / "validation-00000-of-00001.parquet")
    found = columns(str(tmp_path), "validation")
    assert from_columns(name, found, tags) == TaggedSplit((("EU", "it"), ("Ann",)), ((1, 0), (len(tags) - 1,)))
    with pytest.raises(TaskError, match=f"{name}: a tag has the number {len(tags) - 1}; there are 3"):
        from_columns(name, found, tags[:3])
    with pytest.raises(TaskError, match="no column 'ner_tags'; its columns are tokens"):
        from_columns(name, {"tokens": []}, tags)


def test_numbers_of_tags_on_the_hub() -> None:
    assert HUB["conll2003"][1] == ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
    assert HUB["wnut17"][1][:3] == ("O", "B-corporation", "I-corporation") and len(HUB["wnut17"][1]) == 13


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizerFast:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"), ["ann", "peter", "blue", "##s", "it"])


words = st.lists(st.sampled_from(["Ann", "Peter", "blues", "it", "none", "\u200d"]), min_size=1, max_size=12)


@given(st.lists(words, min_size=1, max_size=6), st.integers(4, 10), st.integers(0, 5))
def test_words_without_a_token_are_outside(
    pieces: BertTokenizerFast, sentences: list[list[str]], max_length: int, padding: int
) -> None:
    """Against a plain count of pieces; what stands in the padding does not matter."""
    split = TaggedSplit(tuple(map(tuple, sentences)), tuple((0,) * len(words) for words in sentences))
    rows = encode(pieces, split, max_length)
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(length + padding, 4)) for length in rows.lengths]
    tags = ("O", "B-x", "I-x", "B-y")
    for row, chosen in enumerate(predicted_tags(rows, logits, split, tags)):
        place, expected = 1, []
        for word in sentences[row]:
            count = {"blues": 2, "\u200d": 0}.get(word, 1)
            seen = count and place < max_length - 1
            expected.append(int(logits[row][place].argmax()) if seen else 0)
            place += count
        assert chosen.tolist() == expected
    assert {int(tag) for row in predicted_tags(rows, logits, split, ("a", "b", "c", "d")) for tag in row} >= (
        {-1} if any("\u200d" in sentence for sentence in sentences) else set()
    )


@needs_data
def test_the_real_files() -> None:
    data = load_task("wnut17", DATA / "wnut17")
    assert (len(data.train) + len(data.search), len(data.dev)) == (3_394, 1_009)
    assert set(data.task.labels) == set(HUB["wnut17"][1])
    assert sum(map(len, data.dev.words)) == 15_733
    test = list(read(DATA / "wnut17" / "test.conll"))
    assert len(test) == 1_287 and set(tags_of(word[1] for row in test for word in row)) <= set(data.task.labels)


@needs_data
def test_right_logits_on_the_real_files_are_right() -> None:
    data = load_task("wnut17", DATA / "wnut17")
    vocabulary = BertTokenizerFast(vocab=str(DATA / "vocab" / "bert-base-uncased-vocab.txt"))
    rows = encode(vocabulary, data.dev, 128)
    assert rows.labels is not None
    one = np.eye(len(data.task.labels))
    logits = [one[np.maximum(rows.labels[a:b], 0)] for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)]
    found = score(data.task, predicted_tags(rows, logits, data.dev, data.task.labels), data.dev.tags)
    assert {name: value.value for name, value in found.items()} == {"f1": 1.0, "accuracy": 1.0}
    short = encode(vocabulary, data.dev, 12)
    logits = [one[np.maximum(short.labels[a:b], 0)] for a, b in zip(short.offsets, short.offsets[1:], strict=False)]  # type: ignore[index]
    cut = score(data.task, predicted_tags(short, logits, data.dev, data.task.labels), data.dev.tags)
    assert 0.5 < cut["f1"].value < 0.95 and cut["f1"].standard_error > 0
