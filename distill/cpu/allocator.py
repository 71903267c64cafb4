"""The heap of the C library, where it is glibc; elsewhere these do nothing."""

import ctypes
import sys
from typing import Any

# Parameters of mallopt, a value above the size of any heap, and the most that older versions take for the second.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
NEVER, MOST = 2**31 - 1, 2**25


def keep_freed_memory() -> None:
    """From now on freed memory stays with this process. By itself glibc gets tensors of some megabytes anew from the
    system for each operation, which then costs the zeroing of all their pages.
    """
    library = _glibc()
    if library is not None and any(library.mallopt(MMAP_THRESHOLD, size) for size in (NEVER, MOST)):
        library.mallopt(TRIM_THRESHOLD, NEVER)


def give_back_freed_memory() -> None:
    """Give the system what this process has freed until now."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> Any:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None
