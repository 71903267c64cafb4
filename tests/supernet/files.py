"""Labeled rows that the commands read."""

from pathlib import Path

from tests.tiny import WORDS


def text(row: int, words: int) -> str:
    return " ".join(WORDS[(7 * row + 5 * place + place * place) % 45] for place in range(words))


def write_rows(folder: Path) -> list[str]:
    """Write 24 rows for training and 12 for measuring; returns the options that name them."""
    for name, begin, end in (("train", 0, 24), ("dev", 24, 36)):
        rows = [f"{text(row, 2 + row % 5)}\t{'no' if row % 3 else 'yes'}" for row in range(begin, end)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return ["--train", str(folder / "train.tsv"), "--dev", str(folder / "dev.tsv")]
