"""Small models and rows, and short runs of `python -m distill` on them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForTokenClassification

from distill.__main__ import main
from distill.tasks.types import REGRESSION
from tests.accelerate_state import reset_accelerate
from tests.distill.command.shared import FOUR, TAGS, Distil
from tests.tiny import CLASSES, SIZES, WORDS, bert, saved, shaken


@pytest.fixture(scope="package")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Teachers of four layers for each kind of task, and rows for each."""
    folder = tmp_path_factory.mktemp("fixtures")
    config = BertConfig(**{**SIZES, **FOUR})
    saved(bert(1, labels=2, **FOUR, **CLASSES), folder / "teacher")
    saved(bert(1, labels=1, **FOUR, problem_type=REGRESSION), folder / "number")
    saved(shaken(BertForMaskedLM(config), 2), folder / "words")
    saved(shaken(BertForQuestionAnswering(config), 3), folder / "questions")
    tagger = BertConfig(**{**SIZES, **FOUR, "num_labels": 3, "id2label": TAGS})
    saved(shaken(BertForTokenClassification(tagger), 4), folder / "tagger")
    saved(bert(1, labels=2, **FOUR).base_model, folder / "headless")
    saved(bert(5, labels=2, **CLASSES), folder / "small")
    saved(bert(5, labels=2, **CLASSES, hidden_size=16), folder / "narrow")
    saved(bert(5, labels=2, **CLASSES), folder / "foreign", WORDS[::-1])

    texts = [" ".join(WORDS[(7 * row + 3 * word) % 45] for word in range(2 + row % 6)) for row in range(48)]
    labels = ["no" if row % 3 else "yes" for row in range(48)]

    def tsv(name: str, rows: range, label: Callable[[int], object]) -> None:
        more = " w9" * name.startswith("dev")  # no dev row is a training row
        lines = [f"{texts[row]}{more}\t{texts[-row]}\t{label(row)}" for row in rows]
        (folder / name).write_text("\n".join(["sentence\tother\tlabel", *lines]) + "\n", encoding="utf-8")

    for name, rows in (("train", range(48)), ("dev", range(20))):
        tsv(f"{name}.tsv", rows, lambda row: labels[row])
        tsv(f"{name}-numbers.tsv", rows, lambda row: row % 7 / 2)
        tagged = "\n".join(
            "".join(f"{word} {TAGS[int(word[1:]) % 2]}\n" for word in text.split()) for text in texts[: len(rows)]
        )
        (folder / f"{name}.conll").write_text(tagged, encoding="utf-8")
        paragraphs = [
            {
                "context": text,
                "qas": [{"id": str(row), "question": "w1 w2", "answers": [{"text": text[:2], "answer_start": 0}]}],
            }
            for row, text in enumerate(texts[: len(rows)])
        ]
        (folder / f"{name}.json").write_text(json.dumps({"data": [{"title": "a", "paragraphs": paragraphs}]}))
    (folder / "SST-2").mkdir()
    for name in ("train", "dev"):
        lines = [f"{text}\t{row % 2}" for row, text in enumerate(texts)]
        (folder / "SST-2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    (folder / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "empty.txt").write_text("")
    (folder / "long.tsv").write_text("sentence\tlabel\n" + "w1 " * 50 + "\tno\nw2\tyes\nw3\tyes\n")
    (folder / "three.tsv").write_text("sentence\tlabel\nw1\tno\nw2\tyes\nw3\tmaybe\n")
    return folder


@pytest.fixture
def command(fixtures: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """A function that returns the arguments of a short run on these rows, with `changes`; None leaves out an option."""

    def arguments(*flags: str, **changes: object) -> list[str]:
        usual: dict[str, object] = {
            "teacher": fixtures / "teacher",
            "student": "first:2",
            "train": fixtures / "train.tsv",
            "dev": fixtures / "dev.tsv",
            "out": tmp_path / "out",
            "steps": 3,
            "batch_size": 8,
            "max_length": 16,
            "device": "cpu",
        }
        if changes.keys() & {"task", "corpus"}:
            usual |= {"train": None, "dev": None}
        given = {name: value for name, value in {**usual, **changes}.items() if value is not None}
        return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))] + [
            *flags
        ]

    return arguments


@pytest.fixture
def distil(command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> Distil:
    """Runs in this process; returns what was measured."""

    def run(*flags: str, **changes: object) -> dict[str, Any]:
        arguments = command(*flags, **changes)
        assert main(arguments) == 0, capsys.readouterr().err
        assert capsys.readouterr().err == ""
        reset_accelerate()
        out = Path(arguments[arguments.index("--out") + 1])
        assert not [file.name for file in out.iterdir() if file.name == "state" or file.name.startswith(".")]
        found: dict[str, Any] = json.loads((out / "metrics.json").read_text())
        return found

    return run
