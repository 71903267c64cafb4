"""Mistakes in the options and files of `python -m distill` are reported in one line."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distill.__main__ import main, parser
from distill.objectives import OBJECTIVES
from tests.distill.command.shared import CLASSES, Distil, with_tokenizer
from tests.tiny import bert


def filled(changes: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """Options with the names of places in them replaced by what they stand for."""

    def fill(value: Any) -> Any:
        return functools.reduce(lambda text, place: text.replace(*place), places.items(), value)

    return {name: fill(value) if isinstance(value, str) else value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("flags", "changes", "reason"),
    [
        ([], {"objective": "moeberd"}, "unknown objective 'moeberd'; did you mean 'moebert'.*objectives: efficientb"),
        (["--set", "alfa=1"], {}, "--set alfa=1: kd has alpha=0.5, temperature=2.0, balance=0.0; did you mean 'alpha'"),
        (["--set", "alpha=half"], {}, "--set alpha=half: alpha is a number"),
        (["--set", "alpha"], {}, "--set alpha: kd has"),
        (["--set", "negatives=1.5"], {"objective": "codir"}, "negatives is a whole number"),
        (
            ["--set", "relation_heads=4", "--set", "teacher_layer=5"],
            {"objective": "minilmv2"},
            "--objective minilmv2: teacher_layer=5: the teacher has 4 layers: 1 to 4, or 0, the last",
        ),
        (["--set", "embedding=-1"], {"objective": "microbert"}, "--objective microbert: embedding=-1.0: a weight must"),
        (
            ["--masked-lm", "--set", "critic_input=logits"],
            {"objective": "microbert", "corpus": "FIXTURES/text.txt", "teacher": "FIXTURES/words"},
            "--objective microbert: critic_input='logits': the critic reads 2 logits at a time, and the model predicts",
        ),
        (["--set", "negatives=99999999999"], {"objective": "codir"}, "negatives=99999999999: from 1 to 65,536"),
        (["--set", "until=nan"], {"objective": "theseus"}, "--objective theseus: until=nan: must be between 0 and 1"),
        (["--set", "temperature=0", "--set", "prediction=0"], {"objective": "tinybert"}, "temperature=0.0"),
        (["--set", "prediction=0"], {"objective": "tinybert"}, "tinybert has nothing to learn from"),
        (["--set", "paper_compatible=1"], {"objective": "pkd"}, "paper_compatible is true or false"),
        (["--set", "alpha=3"], {}, "--objective kd: alpha=3.0: must be between 0 and 1"),
        (
            [],
            {"teacher": None, "student": "FIXTURES/small"},
            "--objective kd needs a --teacher; these objectives do not: none",
        ),
        (
            [],
            {"teacher": None, "objective": "none"},
            "--student first:2 takes its layers from the teacher: add --teacher",
        ),
        (["--assistant", "first:1"], {"teacher": None, "student": "FIXTURES/small"}, "--assistant needs a --teacher"),
        ([], {"teacher": "FIXTURES/nowhere"}, "no model at '.*nowhere'"),
        ([], {"student": "FIXTURES/nowhere"}, "no model at '.*nowhere'"),
        ([], {"teacher": "FIXTURES/headless"}, "has no trained head for this task: fine-tune it first"),
        ([], {"teacher": "FIXTURES/tagger"}, "has no trained head for this task: fine-tune it first"),
        ([], {"teacher": "FIXTURES/swapped"}, "has the classes yes, no; the task's are no, yes, in this order"),
        ([], {"student": "FIXTURES/foreign"}, "a vocabulary of 50 tokens that is not the teacher's of 50: choose one"),
        ([], {"student": "first:5"}, "student first:5: the teacher has 4 layers; choose 1 to 4"),
        ([], {"student": "last:2"}, "student last:2: for layers of the teacher give first:N or uniform:N"),
        ([], {"student": "first:0"}, "student first:0: the teacher has 4 layers; choose 1 to 4"),
        ([], {"student": "uniform:3"}, "student uniform:3: 4 teacher layers cannot be shared out evenly to 3"),
        ([], {"student": "first:3", "objective": "moebert"}, "--objective moebert: 4 teacher layers cannot be shared"),
        ([], {"max_length": 64, "train": "LONG"}, "--max-length 64: rows have up to 52 tokens, but the model .*40"),
        ([], {"task": "sst3"}, "unknown task 'sst3'; did you mean 'sst2'"),
        ([], {"task": "sst2", "data": "FIXTURES/nowhere"}, "nowhere"),
        ([], {"task": "sst2", "train": "x.tsv", "dev": "y.tsv"}, "--dev: --task sst2 has its own; leave it out"),
        (
            ["--pair", "other"],
            {"task": "sst2", "data": "FIXTURES", "train": "FIXTURES/train.tsv"},
            "the rows of --task sst2 are single sentences: leave out --pair",
        ),
        ([], {"train": None}, "give the rows by one of --task NAME, --train FILE with --dev FILE, or --corpus TEXT"),
        ([], {"dev": None}, "--dev: give another file than --train"),
        ([], {"dev": "FIXTURES/train.tsv"}, "train.tsv: this is the file of the training rows"),
        ([], {"text": "label"}, "train.tsv: the column 'label' is named twice"),
        ([], {"train": "FIXTURES/three.tsv"}, "has a head for 2 classes .no, yes.; the task has 3: maybe, no, yes"),
        ([], {"train": "FIXTURES/header.tsv"}, "header.tsv: no rows"),
        ([], {"train": "FIXTURES/nowhere.tsv"}, "nowhere.tsv"),
        ([], {"text": "sentense"}, "no column 'sentense'; did you mean 'sentence'"),
        (["--regression"], {"teacher": "FIXTURES/number"}, "row 1 has the label 'yes', which is not a finite number"),
        (["--regression"], {"task": "stsb"}, "--regression describes the rows of --train FILE"),
        ([], {"corpus": "FIXTURES/empty.txt", "objective": "minilm"}, "empty.txt: no text"),
        ([], {"corpus": "FIXTURES/text.txt"}, "--objective kd learns from labels and predictions.*or add --masked-lm"),
        (
            ["--masked-lm"],
            {},
            "--masked-lm: masked words are learned from text; add --corpus TEXT, or leave out --masked-lm",
        ),
        (["--masked-lm"], {"corpus": "FIXTURES/text.txt"}, "has no trained head for this task"),
        (
            [],
            {"corpus": "FIXTURES/text.txt", "finetune_teacher": 1, "objective": "minilm"},
            "text has no labels to learn",
        ),
        (
            [],
            {"data": "FIXTURES"},
            "--data: only a --task has a folder of official files; add --task, or leave out --data",
        ),
        ([], {"out": "FIXTURES"}, "is not empty: choose another folder, or add --resume"),
        (["--resume"], {"out": "FIXTURES"}, "has nothing to resume"),
        ([], {"out": "FIXTURES/text.txt"}, "text.txt is not a folder"),
        ([], {"out": "FIXTURES/text.txt/deeper"}, "--out .*: Not a directory"),
        ([], {"tensorboard": "FIXTURES/text.txt"}, "--tensorboard .*text.txt: File exists"),
        ([], {"tensorboard": "FIXTURES/text.txt/deeper"}, "--tensorboard .*text.txt/deeper: Not a directory"),
        ([], {"batch_size": 0}, "--batch-size: must be at least 1, not 0"),
        ([], {"seed": 2**32}, "--seed: must be below 4,294,967,296"),
        ([], {"max_length": 10**30}, "--max-length: must be below 2,147,483,648"),
        ([], {"learning_rate": "nan"}, "--learning-rate: must be above 0, not nan"),
        ([], {"weight_decay": -1}, "--weight-decay: must be at least 0"),
        ([], {"warmup": 2}, "--warmup-ratio: must be a fraction of the steps"),
        ([], {"learning_rate": "1e30", "steps": 20, "warmup": 0}, "the loss is nan at step .*; a lower"),
    ],
)
def test_mistakes_are_one_line(
    flags: list[str],
    changes: dict[str, Any],
    reason: str,
    command: Callable[..., list[str]],
    fixtures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = tmp_path / "long.tsv"
    long.write_text("sentence\tlabel\n" + "w1 " * 50 + "\tno\nw2\tyes\nw3\tyes\n")
    given = filled(changes, {"FIXTURES": str(fixtures), "LONG": str(long)})
    assert main(command(*flags, **given)) == 2
    error = capsys.readouterr().err
    assert error.startswith("distill: ") and len(error.splitlines()) == 1, error
    assert re.search(reason, error), error


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"student": "first:3", "objective": "pkd"}, "--objective pkd: 4 teacher layers cannot be shared out evenly"),
        ({"student": "NARROW", "objective": "theseus"}, "--objective theseus: .* 16 wide, not 24: take a student"),
        ({"student": "FIXTURES/foreign"}, "has a vocabulary of 50 tokens that is not the teacher's"),
        ({"student": "FIXTURES/nowhere"}, "no model at '.*nowhere'"),
        ({"objective": "tinybert", "set": "prediction=0"}, "tinybert has nothing to learn from"),
    ],
)
def test_a_chain_that_does_not_fit_is_refused_before_any_of_it_is_trained(
    changes: dict[str, str],
    reason: str,
    command: Callable[..., list[str]],
    fixtures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_tokenizer(bert(5, labels=2, **CLASSES, hidden_size=16), tmp_path / "narrow")
    given = filled(changes, {"FIXTURES": str(fixtures), "NARROW": str(tmp_path / "narrow")})
    assert main(command("--assistant", "first:4", finetune_teacher=2, **given)) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and re.search(reason, error), error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["--student", "--out"])
def test_what_must_be_said(missing: str, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = command()
    place = arguments.index(missing)
    with pytest.raises(SystemExit) as stopped:
        main(arguments[:place] + arguments[place + 2 :])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"distill: the following arguments are required: {missing} (see --help)\n"


def test_resumed_with_other_options(
    distil: Distil, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distil()
    for changes, reason in (
        ({"batch_size": 4}, "--resume: --batch-size was 8, not 4"),
        ({"objective": "none"}, "--resume: --objective was 'kd', not 'none'"),
        ({"mixed_precision": "no"}, "--resume: --mixed-precision was 'auto', not 'no'"),
    ):
        assert main(command("--resume", **changes)) == 2
        assert capsys.readouterr().err == f"distill: {reason}\n"
    (tmp_path / "out").rename(tmp_path / "moved")
    distil("--resume", out=tmp_path / "moved")


@pytest.mark.parametrize("content", [b"{", b"3", b"[1]", b"\xff"])
def test_resumed_with_options_that_cannot_be_read(
    content: bytes, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "options.json").write_bytes(content)
    assert main(command("--resume")) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"distill: --resume: .*options.json cannot be read \(.*\); choose another --out\n", error)


def test_help_says_all() -> None:
    text = parser().format_help()
    assert all(len(line) <= 120 for line in text.splitlines())
    assert not [action.dest for action in parser()._actions if not action.help]
    assert len(OBJECTIVES) == 13
