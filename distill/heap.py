"""The C library's heap during a training on a CPU."""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any

# Parameters of glibc's mallopt.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
# More than any tensor or heap here; and the most that glibc comes to by itself.
KEEP, USUAL = 2**31 - 1, 2**25


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Memory that is freed meanwhile stays with the process and is given back in the end. By itself glibc gets tensors
    of some megabytes anew from the system for every operation, which costs the zeroing of all their pages. Where there
    is no glibc, nothing changes.
    """
    library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt"):
        yield
        return
    for parameter in (TRIM_THRESHOLD, MMAP_THRESHOLD):
        library.mallopt(parameter, KEEP)
    try:
        yield
    finally:
        library.mallopt(MMAP_THRESHOLD, USUAL)
        library.mallopt(TRIM_THRESHOLD, 2 * USUAL)
        library.malloc_trim(0)
