"""Reading of text without labels, and of lines of text files."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from distill.files import fingerprint
from distill.tasks.readers import hub
from distill.tasks.readers.columns import column_problem
from distill.tasks.task import TaskError

_HEADING = re.compile(r"=( =)* .* =( =)*")


def read_text(source: str | Path) -> list[str]:
    """Read text to train on, one sentence or paragraph per line: from a .txt file, from all such files below a folder,
    or from the column `text` of the training split of a data set on the hub, "name" or "name:configuration" (such as
    "wikitext:wikitext-103-raw-v1").

    Blank lines and wikitext's headings (` = Title = `) are skipped.

    Raises:
        TaskError: there is no such file, folder or data set, or no text in it.
    """
    files, name = _places(source)
    if name:
        lines = (line for text in _table(name)["text"] for line in text.split("\n"))
    else:
        lines = (line for file in files for line in read_lines(file))
    texts = _without_headings(lines)
    if not texts:
        raise TaskError(f"{source}: no text")
    return texts


def text_key(source: str | Path) -> str:
    """A key that changes whenever the text does, computed without reading a whole data set from the hub.

    Raises:
        TaskError: as `read_text`.
    """
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
        return [path], ""
    return [], str(source)


def _table(source: str) -> Any:
    name, _, configuration = source.partition(":")
    rows = hub.table(name, "train", configuration or None)
    problem = column_problem(["text"], rows.column_names)
    if problem:
        raise TaskError(f"{name}: {problem}")
    return rows


def _without_headings(lines: Iterable[str]) -> list[str]:
    stripped = (line.strip() for line in lines)
    return [line for line in stripped if line and not _HEADING.fullmatch(line)]


def read_utf8(path: Path) -> str:
    """The text of a UTF-8 file, with or without a byte order mark.

    Raises:
        TaskError: the file cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start:,}; convert it") from None
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, with or without a byte order mark. Only a line feed ends a line.

    Raises:
        TaskError: the file cannot be read.
    """
    text = read_utf8(path)
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
