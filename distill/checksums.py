"""Checksums of what is kept in the cache, so that an entry that was damaged on the disk is never used."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from distill.files import SUMS_PREFIX, write_atomically, write_text
from search_spaces.errors import UserError

# A cache may be shared by people who cannot write there.
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


class DamagedError(UserError, OSError):
    """An entry of the cache is not as it was written."""


def create_once(path: Path, write: Callable[[Path], object]) -> Path:
    """Create the file or folder `path` of the cache as `write_atomically` does, or verify it if it exists; returns
    `path`.

    Raises:
        DamagedError: it exists and is not as it was written.
        distill.files.DiskFullError: there is no space left.
    """
    if path.exists():
        verify(path)
    else:
        forget(path)
        write_atomically(path, write, keep_existing=True)
        record(path)
    return path


def record(path: Path) -> None:
    """Write the SHA-256 of a file, or of all files in a folder, to a file beside it; nothing where this user cannot
    write.

    Raises:
        DamagedError: as `sums`.
        distill.files.DiskFullError: there is no space left.
    """
    try:
        write_text(sums_file(path), json.dumps(sums(path), indent=1) + "\n")
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise


def verify(path: Path) -> None:
    """Check that a file or folder is as it was when its checksums were recorded. If there are none, because an earlier
    version made it, they are recorded now.

    Raises:
        DamagedError: it is not, or the checksums cannot be read.
        distill.files.DiskFullError: there is no space left for the checksums.
    """
    # The checksums are read without a look whether they exist: another process that makes the same entry may remove
    # them, and write them again, at any moment.
    try:
        expected = json.loads(sums_file(path).read_bytes())
    except FileNotFoundError:
        record(path)
        return
    except OSError as error:
        raise DamagedError(f"{sums_file(path)} cannot be read ({error.strerror}): remove it") from None
    except (ValueError, RecursionError):
        expected = None
    if not isinstance(expected, dict):
        raise DamagedError(
            f"the checksums of {path} ({sums_file(path)}) are damaged, so it cannot be verified: remove {path}, and "
            "the same command makes it anew"
        )
    found = sums(path)
    if found != expected:
        differ = next(name for name in [*sorted({*found, *expected}), ""] if found.get(name) != expected.get(name))
        what = f"{differ} in it is not" if differ else "it is not"
        raise DamagedError(
            f"{path} is damaged ({what} as it was written): remove it, and the same command makes it anew"
        )


def forget(path: Path) -> None:
    """Remove the checksums of a file or folder that is to be made anew."""
    with contextlib.suppress(FileNotFoundError):
        sums_file(path).unlink()


def sums_file(path: Path) -> Path:
    """The file with the checksums of this file or folder."""
    return path.with_name(f"{SUMS_PREFIX}{path.name}.json")


def sums(path: Path) -> dict[str, str]:
    """The SHA-256 of a file, under the name "", or of the files in a folder, by their paths there.

    Raises:
        DamagedError: a file cannot be read, or something is neither file nor folder.
    """
    if not path.is_dir():
        return {"": _sha256(path)}
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return {file.relative_to(path).as_posix(): _sha256(file) for file in sorted(files)}


def _sha256(file: Path) -> str:
    if file.is_symlink() or not file.is_file():
        raise DamagedError(f"{file} is not a file: remove it, and the same command makes it anew")
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{file} cannot be read ({error.strerror}): remove it") from None
