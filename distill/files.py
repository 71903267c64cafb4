"""Files and folders that appear whole or not at all, keys of their contents, and the folder where they are kept."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs

# The folders of drafts begin with this, and each has a file that its writer locks.
DRAFT_PREFIX, LOCK_FILE = ".unfinished-", ".lock"


def cache_folder() -> Path:
    """Where derived files are kept: `$FFN_NAS_CACHE`, or this platform's cache folder. It is not created."""
    chosen = os.environ.get("FFN_NAS_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("ffn-nas", appauthor=False))


def keep(path: Path, write: Callable[[Path], object]) -> Path:
    """Make the file or folder `path` by `write`, as `replace` does, unless it exists; returns `path`."""
    if not path.exists():
        replace(path, write, keep_existing=True)
    return path


def write_text(path: Path, text: str) -> None:
    """Make `text` the whole content of a UTF-8 file, as `replace` does."""
    replace(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def replace(path: Path, write: Callable[[Path], object], keep_existing: bool = False) -> None:
    """Make the file or folder `path`, or replace the file: `write` makes a draft, which is then moved to `path`.

    Readers see the old file or the whole new one, also where the writer is killed; its draft is removed when the next
    file of the same folder is made.

    Args:
        keep_existing: drop the draft if another process has made `path` in the meantime.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned_drafts(path.parent)
    with _draft_folder(path.parent) as folder:
        draft = folder / path.name
        write(draft)
        try:
            if not (keep_existing and path.exists()):
                os.replace(draft, path)
        except OSError:
            if not (keep_existing and path.exists()):
                raise


@contextlib.contextmanager
def _draft_folder(parent: Path) -> Iterator[Path]:
    """A new folder for a draft, locked so that no other process takes it for abandoned; removed at the end."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=DRAFT_PREFIX))
        try:
            lock = (folder / LOCK_FILE).open("a")
        except FileNotFoundError:
            continue  # another process has removed the folder already
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Another process may have held the lock before, in order to remove the folder.
            if not _is_file_at(lock.fileno(), folder / LOCK_FILE):
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


def _is_file_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove_abandoned_drafts(parent: Path) -> None:
    """Remove the drafts that no process has locked: a lock ends with the process that holds it."""
    for folder in parent.glob(f"{DRAFT_PREFIX}*"):
        try:
            # Its writer may have been killed before it made the file.
            with (folder / LOCK_FILE).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another process holds the lock, or has removed the folder
            continue


def fingerprint(*parts: object) -> str:
    """A short key of the contents of JSON-able values; a `Path` stands for the bytes of its file."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        else:
            digest.update(json.dumps(part, sort_keys=True).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:20]
