"""Checksums of what is kept in the cache, so that an entry that was damaged on the disk is never used.

Sizes and times of change are compared whenever an entry is used, and only files whose time has changed are hashed, as
after a copy of the cache. `python -m nas --verify` hashes everything.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from foundation.errors import UserError
from foundation.files import SUMS_PREFIX, UNWRITABLE, CacheError, naming_cache, write_atomically, write_text

# What the names of files with checksums began with in version 0.1.
SUMS_PREFIX_OF_0_1 = ".sums-"


class DamagedError(UserError, OSError):
    """An entry of the cache is not as it was written."""


class Written(NamedTuple):
    """What is recorded of a file: its bytes, the time of its last change in nanoseconds, and its SHA-256."""

    size: int
    mtime_ns: int
    sha256: str


@naming_cache()
def create_once(path: Path, write: Callable[[Path], object]) -> Path:
    """Create the file or folder `path` of the cache as `write_atomically` does, or verify it if it exists; returns
    `path`.

    Raises:
        DamagedError: it exists and is not as it was written.
        foundation.files.DiskFullError: there is no space left.
        CacheError: this user cannot write to the cache.
    """
    if not path.exists():
        sums_file(path).unlink(missing_ok=True)
        write_atomically(path, write, keep_existing=True)
    verify(path)
    return path


def verify(path: Path, hashed: bool = False) -> None:
    """Check that a file or folder is as it was when its checksums were recorded. If there are none, because the process
    that made it has not done so or was killed before, they are recorded now.

    Args:
        hashed: hash all files, also those whose size and time of change are as they were.

    Raises:
        DamagedError: it is not, or the checksums cannot be read.
        foundation.files.DiskFullError: there is no space left for the checksums.
    """
    expected, files = _recorded(path), _files(path)
    if expected is None:
        _record(path, {name: _written(file) for name, file in files.items()})
        return
    for name in sorted({*files, *expected}):
        if name not in files or name not in expected or not _is_unchanged(files[name], expected[name], hashed):
            what = f"{name} in it is not" if name else "it is not"
            raise DamagedError(
                f"{path} is damaged ({what} as it was written): remove it, and the same command makes it anew"
            )
    now = {name: Written(was.size, _stat(files[name]).st_mtime_ns, was.sha256) for name, was in expected.items()}
    if now != expected:
        _record(path, now)


def verify_cache(cache: Path) -> int:
    """Verify all entries of the cache folder by their hashes; returns how many there are.

    Raises:
        CacheError, DamagedError: an entry is of an earlier format, or not as it was written.
    """
    refuse_earlier_format(cache)
    files = sorted(cache.glob(f"*/{SUMS_PREFIX}*.json"))
    paths = [file.with_name(file.name.removeprefix(SUMS_PREFIX).removesuffix(".json")) for file in files]
    present = [path for path in paths if path.exists()]
    for path in present:
        verify(path, hashed=True)
    return len(present)


def refuse_earlier_format(cache: Path) -> None:
    """Check that no entry of the cache folder was written by version 0.1.

    Raises:
        CacheError: one was.
    """
    if any(cache.glob(f"*/{SUMS_PREFIX_OF_0_1}*")):
        raise CacheError(
            f"the cache {cache} was made by version 0.1: remove it, or set FFN_NAS_CACHE to another folder, and the "
            "same command makes everything anew"
        )


def sums_file(path: Path) -> Path:
    """The file with the checksums of this file or folder."""
    return path.with_name(f"{SUMS_PREFIX}{path.name}.json")


def _recorded(path: Path) -> dict[str, Written] | None:
    """The checksums of a file, under the name "", or of the files in a folder, by their paths there; None: there are
    none. They are read without a look whether they exist: another process that makes the same entry may remove them,
    and write them again, at any moment.
    """
    file = sums_file(path)
    try:
        content = json.loads(file.read_bytes())
        return {name: Written(*values) for name, values in content.items()}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedError(f"{file} cannot be read ({error.strerror}): remove it") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DamagedError(
            f"the checksums of {path} ({file}) are damaged: remove {path}, and the same command makes it anew"
        ) from None


def _record(path: Path, written: dict[str, Written]) -> None:
    """Write the checksums to a file beside the entry; nothing where this user cannot write."""
    try:
        write_text(sums_file(path), json.dumps(written, indent=1) + "\n")
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise


def _files(path: Path) -> dict[str, Path]:
    """The file, under the name "", or the files in a folder, by their paths there."""
    if not path.is_dir():
        return {"": path}
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return {file.relative_to(path).as_posix(): file for file in files}


def _stat(file: Path) -> os.stat_result:
    try:
        status = file.lstat()
    except OSError as error:
        raise DamagedError(f"{file} cannot be read ({error.strerror}): remove it") from None
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"{file} is not a file: remove it, and the same command makes it anew")
    return status


def _is_unchanged(file: Path, was: Written, hashed: bool) -> bool:
    status = _stat(file)
    if status.st_size != was.size:
        return False
    return (status.st_mtime_ns == was.mtime_ns and not hashed) or _sha256(file) == was.sha256


def _written(file: Path) -> Written:
    status = _stat(file)
    return Written(status.st_size, status.st_mtime_ns, _sha256(file))


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{file} cannot be read ({error.strerror}): remove it") from None
