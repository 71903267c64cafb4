"""Reading of text without labels, and of lines of text files."""

import codecs
import errno
import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from distill.tasks.readers import hub
from distill.tasks.readers.columns import check_columns
from distill.tasks.task import TaskError
from foundation.files import fingerprint

# Files that have no plain text: their rows would be read as if they were sentences.
_TABLES = (".tsv", ".csv", ".json", ".jsonl", ".parquet")
_HEADING = re.compile(r"=( =)* .* =( =)*")


def read_paragraphs(source: str | Path) -> Iterator[str]:
    """Read text to train on, one sentence or paragraph per line: from a .txt file, from all such files below a folder,
    or from the column `text` of the training split of a data set on the hub, "name" or "name:configuration" (such as
    "wikitext:wikitext-103-raw-v1"). The text is read piece by piece and never held in memory as a whole.

    An empty string ends a document: a file, a row of a data set, and what precedes blank lines or one of wikitext's
    headings (` = Title = `), which are skipped.
    """
    files, name = _places(source)
    documents: Iterable[Iterable[str]] = map(lines_of, files)
    if name:  # some rows at a time
        documents = (text.split("\n") for batch in _table(name).iter(1000) for text in batch["text"] if text)
    between, any_text = True, False
    for document in documents:
        for line in chain(document, [""]):
            text = line.strip()
            ends = not text or _HEADING.fullmatch(text) is not None
            if not (ends and between):
                yield "" if ends else text
            between, any_text = ends, any_text or not ends
    if not any_text:
        raise TaskError(f"{source}: no text")


def check_source(source: str | Path) -> None:
    """Raise TaskError if this is a file that does not exist, or a table, or a folder without text files. A name on the
    hub is not looked up.
    """
    files, _ = _places(source)
    for file in files:
        if not file.is_file():
            raise TaskError(f"{file}: {os.strerror(errno.ENOENT)}")


def check_text(path: Path) -> None:
    """Raise TaskError if a file is a table, by its name."""
    if path.suffix.lower() in _TABLES:
        raise TaskError(f"{path}: this is a table; write its texts to a .txt file, one on each line")


def text_key(source: str | Path) -> str:
    """A key that changes whenever the text does, computed without reading a whole data set from the hub."""
    files, name = _places(source)
    if name:
        return fingerprint(hub.files(_table(name)))
    try:
        return fingerprint(*files)
    except OSError as error:
        raise TaskError(f"{error.filename}: {error.strerror}") from None


def _places(source: str | Path) -> tuple[list[Path], str]:
    """The files of a text, or the name of a data set on the hub; the other one is empty."""
    path = Path(source)
    if path.is_dir():
        files = sorted(path.rglob("*.txt"))
        if not files:
            raise TaskError(f"{source}: no .txt file below this folder")
        return files, ""
    if path.is_file() or path.suffix == ".txt":
        check_text(path)
        return [path], ""
    return [], str(source)


def _table(source: str) -> Any:
    name, _, configuration = source.partition(":")
    rows = hub.table(name, "train", configuration or None)
    check_columns(name, ["text"], rows.column_names)
    return rows


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, with or without a byte order mark, one at a time. Only a line feed ends a line, which
    is part of it.
    """
    place = 0
    try:
        with path.open("rb") as file:
            for line in file:
                text = line.removeprefix(codecs.BOM_UTF8) if place == 0 else line
                yield text.decode("utf-8")
                place += len(line)
    except UnicodeDecodeError as error:
        before = place + len(line) - len(text)
        raise TaskError(f"{path}: not UTF-8 at byte {before + error.start:,}; convert it") from None
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from None


def read_lines(path: Path) -> list[str]:
    """The lines of `lines_of` without their ends."""
    return [line.removesuffix("\n").removesuffix("\r") for line in lines_of(path)]
