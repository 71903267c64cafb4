"""`python -m supernet.cut_vocabulary`: what it writes, measures and refuses."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from distill.__main__ import main as distill
from distill.tasks.types import EMBEDDINGS
from distill.training.sentences import pooling_of
from distill.training.teacher import load_model, load_tokenizer, load_unchanged
from search_spaces import FFN, GELU, Architecture, Experts
from supernet.build import base_of_teacher
from supernet.cut_vocabulary import main
from supernet.student import main as student
from tests.commands import Refused, output_elsewhere
from tests.sentences import become_sentence_encoder, leave_case_to_sentence_transformers
from tests.supernet.tokenizers_of import byte_level, sentences, word_pieces
from tests.tiny import CLASSES, SIZES, shaken, tokenizer

ALL = sentences(300)
SMALL = ["--max-length", "40", "--device", "cpu"]


def saved(cls: Any, folder: Path, tokenizer: Callable[[], Any] = word_pieces, **changes: Any) -> Path:
    """A random model of a class, with a tokenizer of some hundred tokens."""
    own = tokenizer()
    kind = RobertaConfig if cls is RobertaForSequenceClassification else BertConfig
    settings = SIZES | CLASSES | {"max_position_embeddings": 64, "vocab_size": len(own) + 3} | changes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shaken(cls(kind(**settings))).save_pretrained(folder)
    own.save_pretrained(folder)
    return folder


def rows_in(folder: Path, dev: Sequence[str] = ALL[60:100]) -> list[str]:
    """Files of rows for training and measuring; returns the options that name them."""
    for name, rows in (("train", ALL[:20]), ("dev", dev)):
        lines = [f"{row}\t{'no' if number % 3 else 'yes'}" for number, row in enumerate(rows)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return ["--train", str(folder / "train.tsv"), "--dev", str(folder / "dev.tsv")]


@pytest.mark.parametrize(
    ("cls", "tokenizer"), [(BertForSequenceClassification, word_pieces), (RobertaForSequenceClassification, byte_level)]
)
@torch.no_grad()
def test_a_teacher(cls: Any, tokenizer: Callable[[], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, out = saved(cls, tmp_path / "teacher", tokenizer), tmp_path / "cut"
    assert main([str(checkpoint), *rows_in(tmp_path), *SMALL, "--out", str(out)]) == 0
    printed, report = capsys.readouterr().out, json.loads((out / "metrics.json").read_text())
    whole, cut = report["models"]["whole"], report["models"]["cut"]
    before, after = (AutoModelForSequenceClassification.from_pretrained(folder).eval() for folder in (checkpoint, out))
    own, small = (AutoTokenizer.from_pretrained(folder) for folder in (checkpoint, out))
    assert after.config.vocab_size == len(small) == cut["pieces"] < whole["pieces"] == len(own) + 3
    assert whole["bytes"] - cut["bytes"] == 4 * 24 * (whole["pieces"] - cut["pieces"])
    assert (whole["params"], cut["params"]) == (before.num_parameters(), after.num_parameters())
    assert f"vocabulary:     {whole['pieces']:,} → {cut['pieces']:,} tokens" in printed
    for row in ALL[:20]:
        logits = [model(**tokens(row, return_tensors="pt")).logits for model, tokens in ((before, own), (after, small))]
        torch.testing.assert_close(*logits)
    dev = [(own.tokenize(row), small.tokenize(row)) for row in ALL[60:100]]
    differ = sum(old != new for old, new in dev)
    assert 0 < differ < 40 and report["spelled_otherwise"] == {"train": 0, "dev": differ}
    assert f"divided into other tokens than before: 0 training rows and {differ} dev rows" in printed
    assert cut["tokens_per_row"] == pytest.approx(2 + sum(len(new) for _, new in dev) / 40)
    assert whole["tokens_per_row"] == pytest.approx(2 + sum(len(old) for old, _ in dev) / 40)
    labels = [int(number % 3 == 0) for number in range(40)]
    for name, model, tokens in (("whole", before, own), ("cut", after, small)):
        predicted = [int(model(**tokens(row, return_tensors="pt")).logits.argmax()) for row in ALL[60:100]]
        right = sum(one == label for one, label in zip(predicted, labels, strict=True))
        assert report["models"][name]["accuracy"]["value"] == pytest.approx(right / 40)
    assert cut["accuracy"]["difference"]["to"] == "whole"


def test_fewer_tokens_than_occur(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    checkpoint, rows = saved(BertForSequenceClassification, tmp_path / "teacher"), rows_in(tmp_path)
    command = [str(checkpoint), *rows, *SMALL, "--json"]
    assert main([*command, "--out", str(tmp_path / "all")]) == 0
    used = json.loads(capsys.readouterr().out)["models"]["cut"]
    assert main([*command, "--out", str(tmp_path / "some"), "--vocab-size", str(used["pieces"] - 40)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["models"]["cut"]["pieces"] == used["pieces"] - 40 and report["spelled_otherwise"]["train"] > 0
    assert report["models"]["cut"]["tokens_per_row"] > used["tokens_per_row"]
    message = refused(main, *command, "--out", tmp_path / "few", "--vocab-size", 10)
    assert "supernet.cut_vocabulary: --vocab-size 10: special tokens" in message and not (tmp_path / "few").exists()


def test_text_and_a_masked_language_model(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    """Whole paragraphs count, of whatever length; there is no score."""
    checkpoint, out = saved(BertForMaskedLM, tmp_path / "mlm"), tmp_path / "cut"
    (tmp_path / "text.txt").write_text(" ".join(ALL[:60]) + "\n" + ALL[60])
    assert main([str(checkpoint), "--corpus", str(tmp_path / "text.txt"), *SMALL, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "other tokens than before: 0 training rows\n" in printed and "accuracy" not in printed
    own, small = (AutoTokenizer.from_pretrained(folder) for folder in (checkpoint, out))
    before, after = (AutoModelForMaskedLM.from_pretrained(folder).eval() for folder in (checkpoint, out))
    kept = own.convert_tokens_to_ids(small.convert_ids_to_tokens(range(len(small))))
    for row in ALL[55:61]:
        logits = [model(**tokens(row, return_tensors="pt")).logits for model, tokens in ((before, own), (after, small))]
        torch.testing.assert_close(logits[0][..., kept], logits[1])
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    message = refused(main, checkpoint, "--corpus", empty, "--out", tmp_path / "no")
    assert message == f"supernet.cut_vocabulary: {empty}: no text\n"


def test_an_encoder_without_a_head_for_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cls, auto in ((BertModel, AutoModel), (BertForMaskedLM, AutoModelForMaskedLM)):
        checkpoint, out = saved(cls, tmp_path / cls.__name__), tmp_path / f"{cls.__name__}-cut"
        assert main([str(checkpoint), *rows_in(tmp_path), *SMALL, "--out", str(out)]) == 0
        report, printed = json.loads((out / "metrics.json").read_text()), capsys.readouterr().out
        assert report["metrics"] == [] and "40 rows of the dev split" in printed and "accuracy" not in printed
        assert json.loads((out / "config.json").read_text())["architectures"] == [cls.__name__]
        _, info = auto.from_pretrained(out, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]


def test_a_sentence_encoder_stays_one(tmp_path: Path) -> None:
    """Also if its configuration names the head of its pre-training, which it no longer has."""
    whole, out = become_sentence_encoder(saved(BertModel, tmp_path / "whole"), "BertForMaskedLM"), tmp_path / "cut"
    (tmp_path / "text.txt").write_text("\n".join(ALL[:20]))
    assert main([str(whole), "--corpus", str(tmp_path / "text.txt"), *SMALL, "--out", str(out)]) == 0
    assert pooling_of(str(out)) == pooling_of(str(whole)) == {"mode": "mean", "normalize": False}
    model, tokenizer = load_model(str(out), (), EMBEDDINGS, new_head=False).eval(), AutoTokenizer.from_pretrained(out)
    before, own = AutoModel.from_pretrained(whole).eval(), AutoTokenizer.from_pretrained(whole)
    states = [of(**tokens(ALL[0], return_tensors="pt"))[0] for of, tokens in ((model, tokenizer), (before, own))]
    torch.testing.assert_close(*states)


def test_texts_that_sentence_transformers_lower_cases(tmp_path: Path) -> None:
    whole, out = become_sentence_encoder(saved(BertModel, tmp_path / "whole")), tmp_path / "cut"
    leave_case_to_sentence_transformers(whole)
    (tmp_path / "text.txt").write_text("\n".join(ALL[:20]).upper())
    assert main([str(whole), "--corpus", str(tmp_path / "text.txt"), *SMALL, "--out", str(out)]) == 0
    assert json.loads((out / "metrics.json").read_text())["spelled_otherwise"] == {"train": 0}
    tokens = load_tokenizer(str(out), EMBEDDINGS).tokenize(ALL[0].upper())
    assert tokens == AutoTokenizer.from_pretrained(whole).tokenize(ALL[0].lower()) and "tomerkomu" in tokens


def test_a_student_with_experts_as_a_stranger_loads_it(tmp_path: Path) -> None:
    teacher = saved(BertForSequenceClassification, tmp_path / "teacher", vocab_size=len(word_pieces()))
    base, _ = base_of_teacher(BertConfig.from_pretrained(teacher))
    half = FFN(GELU, 1, Fraction(3, 8), Experts(4, shared=Fraction(1, 2)))
    architecture = Architecture.of_ffns(base, (half, FFN(GELU)))
    architecture.save(tmp_path / "wanted.json")
    whole, out = tmp_path / "student", tmp_path / "cut"
    assert student([str(tmp_path / "wanted.json"), "--like", str(teacher), "--out", str(whole)]) == 0
    assert main([str(whole), *rows_in(tmp_path), *SMALL, "--out", str(out)]) == 0
    count = json.loads((out / "metrics.json").read_text())["models"]["cut"]["pieces"]
    assert Architecture.load(out / "architecture.json") == replace(architecture, base=replace(base, vocabulary=count))
    code = """
import sys
from transformers import AutoModelForSequenceClassification, AutoTokenizer
for folder in sys.argv[2:]:
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    print(model(**tokenizer(sys.argv[1], return_tensors="pt")).logits.tolist())
"""
    before, after = map(json.loads, output_elsewhere(code, ALL[0], whole, out, folder=tmp_path).splitlines())
    assert before[0] == pytest.approx(after[0], rel=1e-5)


def test_a_cut_student_learns_from_its_teacher_with_the_same_tokens(tmp_path: Path) -> None:
    teacher, rows = saved(BertForSequenceClassification, tmp_path / "teacher"), rows_in(tmp_path)
    assert main([str(teacher), *rows, *SMALL, "--out", str(tmp_path / "small")]) == 0
    options = ["--teacher", str(tmp_path / "small"), "--student", "first:1", "--steps", "1", "--quiet"]
    assert distill([*options, *rows, *SMALL, "--out", str(tmp_path / "trained")]) == 0
    count = json.loads((tmp_path / "small" / "metrics.json").read_text())["models"]["cut"]["pieces"]
    assert json.loads((tmp_path / "trained" / "config.json").read_text())["vocab_size"] == count


def test_the_head_is_that_of_the_rows(tmp_path: Path, refused: Refused) -> None:
    three = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    checkpoint = saved(BertForSequenceClassification, tmp_path / "three", **three)
    (tmp_path / "CoLA").mkdir()
    for name in ("train", "dev"):
        lines = [f"x\t{number % 2}\t\t{row}" for number, row in enumerate(ALL[:9])]
        (tmp_path / "CoLA" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    message = refused(main, checkpoint, "--task", "cola", "--data", tmp_path, "--out", tmp_path / "out")
    assert "has a head for 3 classes (a, b, c); the task has 2: " in message


def test_bad_checkpoints(tmp_path: Path, refused: Refused) -> None:
    rows = [*rows_in(tmp_path), "--out", tmp_path / "out"]
    pretraining = saved(BertForPreTraining, tmp_path / "pretraining")
    message = refused(main, pretraining, *rows)
    assert "is a BertForPreTraining; save it as one of ...Model, ...ForSequenceClassification, " in message
    without = saved(BertModel, tmp_path / "without")
    for file in without.glob("tokenizer*"):
        file.unlink()
    assert "has no tokenizer" in refused(main, without, *rows)
    padding = saved(BertModel, tmp_path / "padding", eos_token_id=401)
    expected = "config.json: eos_token_id is 401, which is not an id of the tokenizer: correct it, or set it to null"
    assert expected in refused(main, padding, *rows)
    small = saved(BertModel, tmp_path / "small", vocab_size=len(word_pieces()) - 1)
    assert "give the model its own tokenizer" in refused(main, small, *rows)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "word_order", "--out", "{}/full"], "exists and is not empty: choose another folder"),
        (["--out", "{}/new"], "name the rows by one of --task NAME, --train FILE with --dev FILE, or --corpus TEXT"),
        (
            ["--corpus", "x.txt", "--out", "{}/new", "--vocab-size", "0"],
            "--vocab-size: must be a whole number of at least 1",
        ),
        (["--task", "word_order", "--out", "{}/new", "--max-length", "3"], "--max-length: must be at least 8, not 3"),
    ],
)
def test_mistakes(words: list[str], message: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "one").write_text("")
    assert message in refused(main, "x", *(word.format(tmp_path) for word in words))


def test_a_checkpoint_is_loaded_as_it_is(tmp_path: Path) -> None:
    """With its own names of classes and kind of problem; and a pooler only if there is one."""
    kind = {"problem_type": "multi_label_classification", "id2label": None, "label2id": None, "num_labels": 3}
    model = load_unchanged(str(saved(BertForSequenceClassification, tmp_path / "labels", **kind)))
    assert model.config.problem_type == "multi_label_classification"
    assert model.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    BertModel(BertConfig(**SIZES), add_pooling_layer=False).save_pretrained(tmp_path / "states")
    assert load_unchanged(str(tmp_path / "states")).pooler is None


def test_words_without_their_longest_beginning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training row may only be divided otherwise if it has an unknown word, which fewer tokens can spell."""
    checkpoint = saved(BertModel, tmp_path / "bert", lambda: tokenizer(["a", "c", "ab", "##bx"]))
    for number, (text, otherwise) in enumerate((("abx cbx", 1), ("abx cbx\nab", 0))):
        (tmp_path / "text.txt").write_text(text)
        command = [str(checkpoint), "--corpus", str(tmp_path / "text.txt"), *SMALL, "--json"]
        assert main([*command, "--out", str(tmp_path / f"out{number}")]) == 0
        assert json.loads(capsys.readouterr().out)["spelled_otherwise"] == {"train": otherwise}
