"""Mistakes in the options and files of `python -m distill` are reported in one line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distill.__main__ import main, parser
from tests.distill.command.shared import Distil

CHAIN = "--assistant first:4 --finetune-teacher 2"
TEXT = {"corpus": "FIXTURES/text.txt"}
NO_TEACHER = {"teacher": None, "student": "FIXTURES/small"}


@pytest.mark.parametrize(
    ("flags", "changes", "reason"),
    [
        ("", {"objective": "moeberd"}, "unknown objective 'moeberd'; did you mean 'moebert'.*objectives: efficientb"),
        ("--set alfa=1", {}, "--set alfa=1: kd has alpha=0.5, temperature=2.0, balance=0.0; did you mean 'alpha'"),
        ("--set alpha=half", {}, "--set alpha=half: alpha is a number"),
        ("--set alpha", {}, "--set alpha: kd has"),
        ("--set negatives=1.5", {"objective": "codir"}, "negatives is a whole number"),
        ("--set paper_compatible=1", {"objective": "pkd"}, "paper_compatible is true or false"),
        ("--set alpha=3", {}, "--objective kd: alpha=3.0: must be between 0 and 1"),
        ("--set until=nan", {"objective": "theseus"}, "--objective theseus: until=nan: must be between 0 and 1"),
        (
            "--set relation_heads=4 --set teacher_layer=5",
            {"objective": "minilmv2"},
            "--objective minilmv2: teacher_layer=5: the teacher has 4 layers: 1 to 4, or 0, the last",
        ),
        (
            "--masked-lm --set critic_input=logits",
            {"objective": "microbert", "teacher": "FIXTURES/words", **TEXT},
            "--objective microbert: critic_input='logits': the critic reads 2 logits at a time, and the model predicts",
        ),
        ("", NO_TEACHER, "--objective kd needs a --teacher; these objectives do not: none"),
        ("--assistant first:1", NO_TEACHER, "--assistant needs a --teacher"),
        ("", {"teacher": None, "objective": "none"}, "--student first:2 takes its layers from the teacher: add --teac"),
        ("", {"teacher": "FIXTURES/nowhere"}, "no model at '.*nowhere'"),
        ("", {"teacher": "FIXTURES/headless"}, "has no trained head for this task: fine-tune it first"),
        ("", {"teacher": "FIXTURES/tagger"}, "has no trained head for this task: fine-tune it first"),
        ("", {"student": "first:5"}, "student first:5: the teacher has 4 layers; choose 1 to 4"),
        ("", {"student": "first:0"}, "student first:0: the teacher has 4 layers; choose 1 to 4"),
        ("", {"student": "last:2"}, "student last:2: for layers of the teacher give first:N or uniform:N"),
        ("", {"student": "uniform:3"}, "student uniform:3: 4 teacher layers cannot be shared out evenly to 3"),
        ("", {"max_length": 64, "train": "FIXTURES/long.tsv"}, "--max-length 64: rows have up to 52 tokens, but .*40"),
        ("", {"task": "sst3"}, "unknown task 'sst3'; did you mean 'sst2'"),
        ("", {"task": "sst2", "data": "FIXTURES/nowhere"}, "nowhere"),
        ("", {"task": "sst2", "train": "x.tsv", "dev": "y.tsv"}, "--dev cannot be combined with --task sst2: leave"),
        (
            "--pair other",
            {"task": "sst2", "data": "FIXTURES", "train": "FIXTURES/train.tsv"},
            "the rows of --task sst2 are single sentences: leave out --pair",
        ),
        (
            "",
            {"task": "squad", "data": "FIXTURES", "train": "FIXTURES/train.tsv"},
            "--train cannot be combined with --task squad, whose rows are not single sentences or pairs",
        ),
        ("", {"train": None}, "name the rows by one of --task NAME, --train FILE with --dev FILE, or --corpus TEXT"),
        ("", {"dev": None}, "--train needs --dev FILE: scores are not measured on training rows"),
        ("", {"dev": "FIXTURES/train.tsv"}, "train.tsv: this is the file of the training rows"),
        ("", {"train": "FIXTURES/three.tsv"}, "has a head for 2 classes .no, yes.; the task has 3: maybe, no, yes"),
        ("", {"train": "FIXTURES/nowhere.tsv"}, "nowhere.tsv"),
        ("", {"text": "sentense"}, "no column 'sentense'; did you mean 'sentence'"),
        (
            "--regression",
            {"teacher": "FIXTURES/number"},
            "train.tsv:2 has the label 'yes', which is not a finite number",
        ),
        ("--regression", {"task": "stsb"}, "--regression describes the rows of --train FILE"),
        ("", {"corpus": "FIXTURES/empty.txt", "objective": "minilm"}, "empty.txt: no text"),
        ("", TEXT, "--objective kd learns from labels and predictions.*or add --masked-lm"),
        ("--masked-lm", TEXT, "has no trained head for this task"),
        ("--masked-lm", {}, "--masked-lm masks words of --corpus TEXT: add --corpus, or leave out --masked-lm"),
        ("--pack", {}, "--pack joins paragraphs of --corpus TEXT: add --corpus, or leave out --pack"),
        ("", {"finetune_teacher": 1, "objective": "minilm", **TEXT}, "--finetune-teacher needs labels, and --corpus"),
        ("", {"data": "FIXTURES"}, "--data is the folder of the files of a --task: add --task, or leave out --data"),
        ("", {"out": "FIXTURES"}, "is not empty: choose another folder, or add --resume"),
        ("--resume", {"out": "FIXTURES"}, "has nothing to resume"),
        ("", {"out": "FIXTURES/text.txt"}, "text.txt is not a folder"),
        ("", {"out": "FIXTURES/text.txt/deeper"}, "--out .*: Not a directory"),
        ("", {"tensorboard": "FIXTURES/text.txt/deeper"}, "--tensorboard .*text.txt/deeper: Not a directory"),
        ("", {"batch_size": 0}, "--batch-size: must be at least 1, not 0"),
        ("", {"seed": 2**32}, "--seed: must be below 4,294,967,296"),
        ("", {"max_length": 10**30}, "--max-length: must be below 2,147,483,648"),
        ("--epochs 2", {"steps": 2}, "--epochs cannot be combined with --steps: leave one of them out"),
        ("", {"learning_rate": "nan"}, "--learning-rate: must be a number above 0, not nan"),
        ("", {"weight_decay": -1}, "--weight-decay: must be at least 0"),
        ("", {"warmup": 2}, "--warmup-ratio: must be a fraction of the steps"),
        ("", {"learning_rate": "1e30", "steps": 20, "warmup": 0}, "the loss is nan at step .*; a lower"),
        # A chain that does not fit is refused before any of it is trained.
        (
            CHAIN,
            {"student": "first:3", "objective": "pkd"},
            "--objective pkd: 4 teacher layers cannot be shared out ev",
        ),
        (
            CHAIN,
            {"student": "FIXTURES/narrow", "objective": "theseus"},
            "--objective theseus: .* 16 wide, not 24: take a",
        ),
        (CHAIN, {"student": "FIXTURES/foreign"}, "a vocabulary of 50 tokens that is not the teacher's of 50: choose"),
        (CHAIN, {"student": "FIXTURES/nowhere"}, "no model at '.*nowhere'"),
        (CHAIN, {"objective": "tinybert", "set": "prediction=0"}, "tinybert has nothing to learn from"),
    ],
)
def test_mistakes_are_one_line(
    flags: str,
    changes: dict[str, Any],
    reason: str,
    command: Callable[..., list[str]],
    fixtures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = command(*flags.split(), **changes)
    assert main([argument.replace("FIXTURES", str(fixtures)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("distill: ") and len(error.splitlines()) == 1, error
    assert re.search(reason, error), error
    assert flags != CHAIN or not (tmp_path / "out").exists()


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
