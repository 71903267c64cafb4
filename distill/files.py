"""Files and folders that appear whole or not at all, and keys of what they depend on."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

# How the folders of drafts begin, and a file in each that its writer locks.
DRAFTS, LOCK = ".unfinished-", ".lock"


def replace(path: Path, write: Callable[[Path], object], unless_there: bool = False) -> None:
    """Make the file or folder `path`, or replace the file: `write` makes a draft, which takes its place at once.

    A writer that is killed leaves what was there, and readers see the old file or the whole new one; its draft goes
    when the next file of the folder is made. With `unless_there` the draft is dropped where another process made `path`
    in the meantime.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=DRAFTS) as scratch, Path(scratch, LOCK).open("w") as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        draft = Path(scratch) / path.name
        write(draft)
        try:
            if not (unless_there and path.exists()):
                os.replace(draft, path)
        except OSError:
            if not (unless_there and path.exists()):
                raise


def _remove_abandoned(folder: Path) -> None:
    """Remove drafts whose lock nobody holds: it went with the process that wrote them."""
    for left in folder.glob(f"{DRAFTS}*"):
        try:
            with (left / LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # it is held, or not there yet or any more
            continue


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
