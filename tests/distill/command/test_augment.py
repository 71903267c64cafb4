"""TinyBERT's data augmentation: the copies, the candidates, and the command by its files."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from distill.__main__ import main as distil
from distill.__main__ import parser
from distill.augment import main
from distill.command.examples import load_examples
from distill.tasks.augmentation import Augmentation, Neighbors, Word, read_neighbors
from distill.tasks.readers.tables import read_rows
from distill.tasks.splits import Split
from distill.tasks.task import TaskError
from tests.accelerate_state import reset_accelerate
from tests.supernet.tokenizers_of import KINDS, sentences
from tests.tiny import SIZES, bert, shaken

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["red", "green", "blue", "cat", "dog", "bird", "runs", "sleeps", "sings", "tall", "the", "and", "un", "##kind"]
VOCABULARY = [*SPECIAL, *WORDS, "##ly", "2024", ".", ",", "n1", "é"]
TEXTS = ("the red cat sleeps.", "Blue dog runs and unkind bird sings", "2024, the tall n1", "dog")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model with its tokenizer."""
    place = tmp_path_factory.mktemp("mlm")
    torch.manual_seed(0)
    config = BertConfig(**{**SIZES, "vocab_size": len(VOCABULARY)})
    shaken(BertForMaskedLM(config), 3, scale=0.5).save_pretrained(place / "mlm")
    bert(1, labels=2, vocab_size=len(VOCABULARY)).save_pretrained(place / "classifier")
    for name in ("mlm", "classifier"):
        vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
        BertTokenizerFast(vocab=vocabulary).save_pretrained(place / name)
    rows = [f"{text}\t{TEXTS[number - 1]}\t{'yes' if number % 2 else 'no'}" for number, text in enumerate(TEXTS)]
    (place / "rows.tsv").write_text("\n".join(["sentence\tother\tclass", *rows]) + "\n")
    return place


@pytest.fixture(scope="module")
def augmentation(folder: Path) -> Callable[..., Augmentation]:
    model = BertForMaskedLM.from_pretrained(folder / "mlm").eval()
    tokenizer = BertTokenizerFast.from_pretrained(folder / "mlm")
    return lambda **changes: Augmentation(model, tokenizer, **changes)


def reference(model: Any, text: str, word: str, count: int) -> list[str]:
    """The most probable words in the place of a word, one sentence at a time, with probabilities of all entries."""
    pieces = text.lower().replace(".", " .").replace(",", " ,").replace("unkind", "un ##kind").split()
    masked = ["[CLS]", *("[MASK]" if piece == word else piece for piece in pieces), "[SEP]"]
    ids = torch.tensor([[VOCABULARY.index(piece) for piece in masked]])
    with torch.no_grad():
        probabilities = model(input_ids=ids).logits[0, masked.index("[MASK]")].softmax(dim=-1)
    order = [VOCABULARY[number] for number in probabilities.argsort(descending=True).tolist()]
    return [entry for entry in order if entry.isalpha()][:count]


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_candidates_are_the_most_probable_words_in_the_place(
    augmentation: Callable[..., Augmentation], batch_size: int
) -> None:
    one = augmentation(candidates=4, batch_size=batch_size)
    expected = {
        0: ["red", "cat", "sleeps"],  # "the" is a stop word
        1: ["blue", "dog", "runs", "bird", "sings"],  # "unkind" has two pieces
        2: ["tall"],  # numbers and words with digits stay
        3: ["dog"],
    }
    for row, words in enumerate(one.words(TEXTS)):
        assert [TEXTS[row][word.start : word.end].lower() for word in words] == expected[row]
        for word, name in zip(words, expected[row], strict=True):
            assert list(word.candidates) == reference(one.model, TEXTS[row], name, 4)


def test_no_special_token_and_no_inside_of_a_word(augmentation: Callable[..., Augmentation]) -> None:
    """Even if more candidates are wanted than there are words."""
    found = augmentation(candidates=1000).words(TEXTS)
    assert {candidate for row in found for word in row for candidate in word.candidates} == {*WORDS, "é"} - {"##kind"}


def test_a_letter_and_its_accent_are_not_divided(augmentation: Callable[..., Augmentation]) -> None:
    """This tokenizer leaves the accent out; another word in place of the letters would get it."""
    text = "red cat\u0301 dog\ufe0f bird"
    (words,) = augmentation(candidates=2).words([text])
    assert [text[word.start : word.end] for word in words] == ["red", "bird"]


def test_copies_follow_the_algorithm(augmentation: Callable[..., Augmentation]) -> None:
    one = augmentation(probability=0.4, seed=3)
    text, words = "ab cd ef", [Word(0, 2, ("x", "y")), Word(6, 8, ("z",))]
    for trial in range(20):
        rng = random.Random(trial)
        parts = text.split()
        for place, candidates in ((0, ("x", "y")), (2, ("z",))):
            if rng.random() < 0.4:
                parts[place] = rng.choice(candidates)
        assert one.copy(text, words, random.Random(trial)) == " ".join(parts)
    share = np.mean([one.copy("ab", words[:1], random.Random(trial)) != "ab" for trial in range(4000)])
    assert abs(share - 0.4) < 0.03


def test_rows(augmentation: Callable[..., Augmentation], monkeypatch: pytest.MonkeyPatch) -> None:
    split = Split(TEXTS, TEXTS[::-1], (0, 1, 0, 1))
    one = augmentation(copies=3, candidates=2, probability=0.7, seed=1)
    rows = list(one.rows(split))
    assert len(rows) == 4 * (1 + 3 + 3)
    for place in range(4):
        original, *copies = rows[7 * place : 7 * (place + 1)]
        assert original == (TEXTS[place], TEXTS[3 - place], split.labels[place])
        assert all(label == split.labels[place] for _, _, label in copies)
        assert all(pair == TEXTS[3 - place] for _, pair, _ in copies[:3])  # one sentence at a time
        assert all(text == TEXTS[place] for text, _, _ in copies[3:])
    assert rows == list(augmentation(copies=3, candidates=2, probability=0.7, seed=1, batch_size=2).rows(split))
    assert rows != list(augmentation(copies=3, candidates=2, probability=0.7, seed=2).rows(split))
    monkeypatch.setattr("distill.tasks.augmentation.CHUNK", 3)
    assert rows == list(one.rows(split))


def test_extreme_settings(augmentation: Callable[..., Augmentation]) -> None:
    split = Split(TEXTS, None, (0, 1, 0, 1))
    unchanged = list(augmentation(copies=2, probability=0).rows(split))
    assert [text for text, _, _ in unchanged] == [text for text in TEXTS for _ in range(3)]
    one = augmentation(copies=1, probability=1, candidates=1)
    copies = [text for text, _, _ in one.rows(split)][1::2]
    best = {name: reference(one.model, TEXTS[0], name, 1)[0] for name in ("red", "cat", "sleeps")}
    assert copies[0] == f"the {best['red']} {best['cat']} {best['sleeps']}."
    assert copies[3] == reference(one.model, "dog", "dog", 1)[0]


def test_sentences_that_are_too_long_keep_their_end(augmentation: Callable[..., Augmentation]) -> None:
    text = " ".join(["cat"] * 30)  # the model has 20 positions, of which two are special tokens
    (words,) = augmentation(candidates=2).words([text])
    assert [word.start for word in words] == [4 * number for number in range(18)]


def test_neighbors(tmp_path: Path, augmentation: Callable[..., Augmentation]) -> None:
    rng = np.random.default_rng(0)
    names = ["unkind", "mean", "cruel", "nice", "far"]
    vectors = {name: rng.normal(size=5) for name in names}
    file = tmp_path / "vectors.txt"
    file.write_text("".join(f"{name} {' '.join(map(str, vector))}\n" for name, vector in vectors.items()) + ". 1 2\n")
    neighbors = read_neighbors(file)
    cosine = {
        name: float(vectors["unkind"] @ vector / np.linalg.norm(vectors["unkind"]) / np.linalg.norm(vector))
        for name, vector in vectors.items()
    }
    expected = sorted(names[1:], key=lambda name: -cosine[name])
    assert list(neighbors.nearest("unkind", 3)) == expected[:3]
    assert list(neighbors.nearest("Unkind", 9)) == [name.capitalize() for name in expected]
    assert neighbors.nearest("unknown", 3) == ()
    words = augmentation(neighbors=neighbors, candidates=2).words(TEXTS)[1]
    (unkind,) = (word for word in words if TEXTS[1][word.start : word.end] == "unkind")
    assert list(unkind.candidates) == expected[:2]
    # A word of one piece is masked, whatever the vectors say.
    assert augmentation(neighbors=Neighbors({"dog": np.ones(2), "cat": np.ones(2)}), candidates=1).words(["dog"])[0][
        0
    ].candidates == tuple(reference(augmentation().model, "dog", "dog", 1))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("cat 1 2\ndog 1\n", ":2: 1 numbers; the words before have 2"),
        ("cat one two\n", ":1: a line must be a word and its finite numbers"),
        ("cat\n", ":1: a line must be a word and its finite numbers"),
        ("cat nan\n", ":1: a line must be a word and its finite numbers"),
        ("", "no vectors of words"),
    ],
)
def test_malformed_vectors(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text(content)
    with pytest.raises(TaskError, match=reason):
        read_neighbors(file)


def options(folder: Path, out: Path, *more: str) -> list[str]:
    columns = ["--text", "sentence", "--pair", "other", "--label", "class"]
    return ["--model", str(folder / "mlm"), "--train", str(folder / "rows.tsv"), *columns, "--out", str(out), *more]


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--copies", "2", "--device", "cpu", "--batch-size", "2", "--probability", "1"]
    outs = [tmp_path / f"{number}.tsv" for number in range(3)]
    for out, seed in zip(outs, "112", strict=True):
        assert main(options(folder, out, *small, "--seed", seed)) == 0
    assert "4 rows, 20 with their copies" in capsys.readouterr().out
    assert outs[0].read_bytes() == outs[1].read_bytes() != outs[2].read_bytes()
    given, classes = read_rows(folder / "rows.tsv", "sentence", "class", "other")
    written, same = read_rows(outs[0], "sentence", "class", "other")
    assert classes == same
    assert written.take(range(0, 20, 5)) == given
    assert written.labels == tuple(label for label in given.labels for _ in range(5))


def test_rows_of_a_task_and_their_use(folder: Path, tmp_path: Path) -> None:
    """GLUE's rows are augmented, and `python -m distill --task ... --train` learns from them and keeps its dev rows."""
    data, out, dev = tmp_path / "GLUE", tmp_path / "rows.tsv", tmp_path / "dev.tsv"
    (data / "SST-2").mkdir(parents=True)
    lines = [f"{text}\t{number % 2}" for number, text in enumerate(TEXTS * 5)]
    for name in ("train", "dev"):
        (data / "SST-2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    task = ["--task", "sst2", "--data", str(data), "--device", "cpu", "--quiet"]
    assert main(["--model", str(folder / "mlm"), *task, "--copies", "1", "--out", str(out), "--dev-out", str(dev)]) == 0
    rows, classes = read_rows(out, "sentence", "label")
    assert (len(rows), classes) == (40, ("negative", "positive"))
    assert read_rows(dev, "sentence", "label")[0].texts == TEXTS * 5
    reset_accelerate()  # its precision differs
    common = ["--student", str(folder / "classifier"), "--objective", "none", "--steps", "2", "--max-length", "16"]
    assert distil([*common, *task, "--train", str(out), "--out", str(tmp_path / "student")]) == 0
    given = parser().parse_args([*common, *task, "--train", str(out), "--out", str(tmp_path)])
    loaded = load_examples(given, BertTokenizerFast.from_pretrained(folder / "mlm"))
    assert loaded.eval_set is not None
    assert (len(loaded.train), len(loaded.eval_set.encoded), loaded.eval_set.task.name) == (40, 20, "sst2")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["--copies", "0"], "--copies: must be at least 1, not 0"),
        (["--probability", "1.5"], "--probability: must be between 0 and 1, not 1.5"),
        (["--candidates", "0"], "--candidates: must be at least 1"),
        (["--out", "rows.csv"], "--out rows.csv: the name must end in .tsv"),
        (["--task", "sst2"], "name the rows by one of --task NAME or --train FILE"),
        (["--dev-out", "dev.tsv"], "--dev-out needs a --task"),
        (["--text", "nothing"], "no column 'nothing'"),
        (["--vectors", "nowhere.txt"], "nowhere.txt: No such file"),
        (["--model", "CLASSIFIER"], "has no trained head for this task, to predict masked words: choose a pre-trained"),
        (["--model", "nowhere"], "no model at 'nowhere'"),
    ],
)
def test_mistakes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[str], reason: str
) -> None:
    changes = [str(folder / "classifier") if change == "CLASSIFIER" else change for change in changes]
    assert main([*options(folder, tmp_path / "out.tsv"), "--device", "cpu", *changes]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("distill.augment: ")
    assert reason in error
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_kept(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.tsv"
    out.write_text("mine")
    assert main(options(folder, out)) == 2
    assert "exists: choose another name" in capsys.readouterr().err and out.read_text() == "mine"
    task = ["--model", str(folder / "mlm"), "--task", "word_order", "--out", str(tmp_path / "other.tsv")]
    assert main([*task, "--pair", "other"]) == 2
    assert "--pair describes the rows of --train FILE" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["byte-level BPE", "Unigram"])
def test_candidates_are_words_whatever_marks_their_beginnings(kind: str) -> None:
    tokenizer = KINDS[kind]()
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**{**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 60})).eval()
    augmentation = Augmentation(model, tokenizer, copies=1, probability=1.0)
    beginnings = {"byte-level BPE": "Ġ", "Unigram": "▁"}
    begin_words = {token[1:].replace("Ã¼", "ü") for token in tokenizer.get_vocab() if token[0] == beginnings[kind]}
    changed = []
    for text, words in zip(sentences(20), augmentation.words(sentences(20)), strict=True):
        for word in words:
            assert text[word.start : word.end].isalpha() and text[word.end : word.end + 1] in ("", " ", ",")
            assert {*word.candidates} <= begin_words
            changed.append(word.start > 0)
    assert any(changed)
