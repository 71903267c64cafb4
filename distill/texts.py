"""Text without labels, and lines of text files."""

import re
from collections.abc import Iterable
from pathlib import Path

from distill.hub import columns
from distill.tasks import TaskError

_HEADING = re.compile(r"=( =)* .* =( =)*")


def read_text(source: str | Path) -> list[str]:
    """Sentences or paragraphs to train on, one a line: of a .txt file, of all those below a folder, or of the training
    split of a data set on the hub, "name" or "name:configuration" (such as "wikitext:wikitext-103-raw-v1"), whose
    column is `text`.

    Blank lines and wikitext's headings (` = Title = `) are left out.

    Raises:
        TaskError: there is no such file, folder or data set, or no text in it.
    """
    path = Path(source)
    if path.is_dir():
        lines = [line for file in sorted(path.rglob("*.txt")) for line in read_lines(file)]
    elif path.is_file() or path.suffix == ".txt":
        lines = read_lines(path)
    else:
        name, _, configuration = str(source).partition(":")
        found = columns(name, "train", configuration or None)
        if "text" not in found:
            raise TaskError(f"{name}: no column 'text'; its columns are {', '.join(found)}")
        lines = [line for text in found["text"] for line in text.split("\n")]
    texts = _without_headings(lines)
    if not texts:
        what = "no .txt file with text below this folder" if path.is_dir() else "no text"
        raise TaskError(f"{source}: {what}")
    return texts


def _without_headings(lines: Iterable[str]) -> list[str]:
    stripped = (line.strip() for line in lines)
    return [line for line in stripped if line and not _HEADING.fullmatch(line)]


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, with or without a byte order mark; nothing but a line feed ends a line.

    Raises:
        TaskError: the file cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start:,}; convert it") from None
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
