"""Files and folders that appear whole or not at all, and keys of what they depend on."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def replace(path: Path, write: Callable[[Path], object], unless_there: bool = False) -> None:
    """Make the file or folder `path`, or replace the file: `write` makes a draft, which takes its place at once.

    A writer that is killed leaves what was there, and readers see the old file or the whole new one. With
    `unless_there` the draft is dropped where another process made `path` in the meantime.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unfinished-") as scratch:
        draft = Path(scratch) / path.name
        write(draft)
        if not (unless_there and path.exists()):
            os.replace(draft, path)


def keep(path: Path, write: Callable[[Path], object]) -> Path:
    """The file or folder `path`, made by `write` as by `replace` if it is not there yet."""
    if not path.exists():
        replace(path, write, unless_there=True)
    return path


def write_text(path: Path, text: str) -> None:
    """`text` as the whole of a UTF-8 file, as by `replace`."""
    replace(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def fingerprint(*parts: object) -> str:
    """A short content key of JSON-able values; a `Path` stands for the bytes of its file."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        else:
            digest.update(json.dumps(part, sort_keys=True).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:20]
