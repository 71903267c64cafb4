"""Atomic creation of files and folders, fingerprints of their contents, and the cache folder."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import platformdirs

from foundation import interrupt
from foundation.errors import UserError

# The prefixes of temporary draft folders, of folders with the state of interrupted work, and of folders for temporary
# files, and the file inside each of them that its writer keeps locked; and the prefix of files with checksums.
DRAFT_PREFIX, STATE_PREFIX, SCRATCH_PREFIX, LOCK_FILE = ".unfinished-", ".state-", ".ffn-nas-", ".lock"
SUMS_PREFIX = ".written-"

# How libraries say that a disk is full: the system's text, SQLite's, and those of `torch.save`, which give no reason.
NO_SPACE = re.compile(
    "No space left on device|Disk quota exceeded|database or disk is full|"
    r"PytorchStreamWriter failed writing file|unexpected pos \d+ vs \d+|basic_ios::clear: iostream error"
)


# A cache may be shared by people who cannot write there.
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


class CacheError(UserError, OSError):
    """Others could write to the cache folder, or have put a link there; or this user cannot write there."""


class DiskFullError(UserError, OSError):
    """A file could not be written because there is no space left for it."""


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one that it was raised for, says that a disk or a user's share of it is full. Libraries have
    exceptions of their own for this, with the system's text.
    """
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(link, DiskFullError) or NO_SPACE.search(str(link)):
            return True
        link = link.__cause__ or link.__context__
    return False


def cache_folder() -> Path:
    """The folder for derived files: `$FFN_NAS_CACHE`, or the platform's cache folder. This does not create it.

    Raises:
        CacheError: others can write there, from where weights are loaded.
    """
    chosen = os.environ.get("FFN_NAS_CACHE")
    folder = Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("ffn-nas", False))
    _check_owner(folder)
    return folder


def _check_owner(folder: Path) -> None:
    """Check who can write to the cache folder: its owner, who is this user or root, or its group, if it is shared with
    a group of this user's. Root may use anybody's.

    Raises:
        CacheError: somebody else can, or it is no folder.
    """
    try:
        status = folder.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheError(f"the cache {folder}: {(error.strerror or 'cannot be read').lower()}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(f"the cache {folder} is not a folder: set FFN_NAS_CACHE to one")
    if status.st_mode & stat.S_IWOTH:
        raise CacheError(
            f"the cache {folder} can be written by everybody, and weights are loaded from there: chmod o-w {folder}, "
            "or set FFN_NAS_CACHE to a folder of your own"
        )
    user, groups = os.geteuid(), {os.getegid(), *os.getgroups()}
    shared = status.st_gid in groups and status.st_mode & stat.S_IWGRP
    if user and status.st_uid not in (0, user) and not shared:
        raise CacheError(
            f"the cache {folder} belongs to another user, who can change what is loaded from there: set FFN_NAS_CACHE "
            "to a folder of your own, or to one that is shared with your group"
        )


@contextlib.contextmanager
def naming_cache() -> Iterator[None]:
    """In this block, the error that the cache folder, or a file in it, cannot be written to is a CacheError."""
    try:
        yield
    except OSError as error:
        cache, place = cache_folder(), Path(str(error.filename))
        above = cache.is_relative_to(place)
        nowhere = error.errno == errno.ENOENT and above  # such as in /proc
        in_file = error.errno == errno.ENOTDIR or (error.errno == errno.EEXIST and place.is_file())
        if not (above or place.is_relative_to(cache)) or not (error.errno in UNWRITABLE or nowhere or in_file):
            raise
        problem = CacheError(
            f"the cache {cache} cannot be written to ({place}: {(error.strerror or '').lower()}): set FFN_NAS_CACHE to "
            "a folder of your own"
        )
        problem.errno = error.errno
        raise problem from None


@naming_cache()
def _make_folder(folder: Path) -> None:
    """Create a folder with its parents, unless it exists. The cache folder among them is its owner's alone."""
    cache = cache_folder()
    if cache in (folder, *folder.parents):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        UserError: it cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {str(error).splitlines()[0]}") from None


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically, as in `write_atomically`."""
    write_atomically(path, lambda draft: draft.write_text(text, encoding="utf-8"))


@naming_cache()
def write_atomically(path: Path, write: Callable[[Path], object], keep_existing: bool = False) -> None:
    """Create a file or folder, or replace a file, atomically: `write` creates a draft, which is then moved to `path`.

    Readers see either the old file or the complete new one, even if the writer is killed. In that case its draft is
    removed when the next file is created in the same folder.

    Args:
        keep_existing: discard the draft if another process has created `path` in the meantime.

    Raises:
        DiskFullError: there is no space left.
        CacheError: it is in the cache folder, where this user cannot write.
    """
    try:
        _write_atomically(path, write, keep_existing)
    except Exception as error:  # libraries raise errors of their own when a disk is full
        if isinstance(error, DiskFullError) or not is_disk_full(error):
            raise
        raise DiskFullError(f"{path}: there is no space left on this disk") from error


def _write_atomically(path: Path, write: Callable[[Path], object], keep_existing: bool) -> None:
    _make_folder(path.parent)
    with _locked_folder(path.parent, DRAFT_PREFIX) as folder:
        draft = folder / path.name
        write(draft)
        ordinary_modes(draft)
        if keep_existing and draft.is_file():
            # Unlike a folder, a file would silently replace one that another process has created at this moment.
            with contextlib.suppress(OSError):  # it exists, or there are no links in this file system
                os.link(draft, path)
                return
        try:
            if not (keep_existing and path.exists()):
                os.replace(draft, path)
        except OSError:
            if not (keep_existing and path.exists()):
                raise


def save_pretrained(folder: Path, *parts: Any) -> None:
    """Save models and tokenizers of Hugging Face in a folder, with ordinary file modes.

    A tokenizer is saved without truncation and padding: they are what it was last called with, which an interrupted
    command may have left to the one before it.
    """
    for part in parts:
        if (backend := getattr(part, "backend_tokenizer", None)) is not None:
            backend.no_truncation()
            backend.no_padding()
        part.save_pretrained(folder)
    ordinary_modes(folder)


def ordinary_modes(path: Path) -> None:
    """Give a file, or all files in a folder, the mode that a new file has: safetensors and other libraries write
    through temporary files, which only their owner may read.
    """
    umask = os.umask(0o077)  # the umask can only be read by setting it
    os.umask(umask)
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(0o666 & ~umask)


@contextlib.contextmanager
def state_of(path: Path) -> Iterator[Path]:
    """A folder for the state of the work whose result will be `path`, beside it. The folder is removed when the block
    ends, and kept if the block fails or the process is killed, so that the next attempt can continue.

    If another process is in such a block for the same path, this is an empty temporary folder.

    Raises:
        CacheError: in place of the folder there is a link, through which files elsewhere would be overwritten.
    """
    folder = path.parent / f"{STATE_PREFIX}{path.name}"
    if folder.is_symlink():
        raise CacheError(f"{folder} is a link to another folder: remove it")
    lock = None
    while lock is None:
        with contextlib.suppress(FileExistsError):  # raised if another process removes the folder at this moment
            _make_folder(folder)
        try:
            lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with scratch_folder() as own:
                (own / path.name).mkdir()
                yield own / path.name
            return
    with lock:
        try:
            yield folder
        except BaseException:  # an interrupt, too
            if all(file.name == LOCK_FILE for file in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder for temporary files, which has nothing but the lock in it and is removed on exit. Those of killed
    processes are removed when the next one is made.

    Args:
        parent: where it is made; None: the system's folder for temporary files.
    """
    with _locked_folder(parent or Path(tempfile.gettempdir()), SCRATCH_PREFIX) as folder:
        yield folder


def remove_abandoned_scratch_folders() -> None:
    """Remove the scratch folders of killed processes in the system's folder for temporary files."""
    with contextlib.suppress(FileNotFoundError):  # there is no folder that can be written to
        _remove_abandoned(Path(tempfile.gettempdir()), SCRATCH_PREFIX)


@contextlib.contextmanager
def _locked_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new temporary folder, locked so that no other process considers it abandoned, and removed on exit. Abandoned
    ones are removed before.
    """
    _remove_abandoned(parent, prefix)
    lock = None
    while lock is None:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        lock = _lock(folder, fcntl.LOCK_EX)
    with lock:
        try:
            yield folder
        finally:
            with interrupt.ignored():
                shutil.rmtree(folder, ignore_errors=True)


@naming_cache()
def _lock(folder: Path, operation: int) -> IO[str] | None:
    """Lock a folder until the returned file is closed; None if another process has removed it in the meantime.

    Raises:
        BlockingIOError: another process has locked it, and the operation of `flock` does not wait.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((folder / LOCK_FILE).open("a"))
            fcntl.flock(file, operation)
            if os.path.samestat(os.fstat(file.fileno()), (folder / LOCK_FILE).stat()):
                stack.pop_all()
                return file
        except FileNotFoundError:
            pass
    return None


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the temporary folders of killed processes: those that no process has locked, since a lock is released on
    exit. What belongs to others, with whom a folder for temporary files is shared, is left alone, and so are links.
    """
    for folder in parent.glob(f"{prefix}*"):
        try:
            if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
                continue
            # Mode "a" creates the lock file if the writer was killed before it did.
            with (folder / LOCK_FILE).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another process holds the lock, or has removed the folder
            continue


def files_of_model(folder: Path) -> list[Path]:
    """The files of a checkpoint that say what it computes: its weights, configuration and tokenizer."""
    kinds = (".safetensors", ".bin", ".json", ".txt", ".model")
    return sorted(file for file in folder.glob("*") if file.suffix in kinds and file.is_file())


def fingerprint(*parts: object) -> str:
    """A short hash of JSON-serializable values; a `Path` stands for the contents of its file."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        else:
            digest.update(json.dumps(part, sort_keys=True).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:20]
