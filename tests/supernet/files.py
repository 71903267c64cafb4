"""What the commands read: a model with a tokenizer, and labeled rows."""

from pathlib import Path
from typing import Any

from tests.tiny import tokenizer

WORDS = [f"w{number}" for number in range(45)]
CLASSES = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}


def saved(model: Any, folder: Path) -> Path:
    """Save a model and the tokenizer of its 50 words."""
    model.save_pretrained(folder)
    tokenizer(folder, WORDS).save_pretrained(folder)
    return folder


def text(row: int, words: int) -> str:
    return " ".join(WORDS[(7 * row + 5 * place + place * place) % 45] for place in range(words))


def write_rows(folder: Path) -> list[str]:
    """Write 24 rows for training and 12 for measuring; returns the options that name them."""
    for name, begin, end in (("train", 0, 24), ("dev", 24, 36)):
        rows = [f"{text(row, 2 + row % 5)}\t{'no' if row % 3 else 'yes'}" for row in range(begin, end)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return ["--train", str(folder / "train.tsv"), "--dev", str(folder / "dev.tsv")]
