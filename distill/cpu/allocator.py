"""Control of glibc's heap. With any other C library these functions do nothing.

Without `keep_freed_memory`, a training step of a BERT with 6 layers of width 540 on 8 sentences of 64 tokens takes 1.13
times as long (median of five pairs of processes; the range is 1.02 to 1.19).
"""

import ctypes
import sys
from typing import Any

# Parameters of mallopt; a threshold larger than any heap, and the largest mmap threshold that older versions accept.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
NEVER, LARGEST_THRESHOLD = 2**31 - 1, 2**25


def keep_freed_memory() -> None:
    """Make this process keep freed memory for reuse from now on.

    By default glibc requests memory for tensors of several megabytes from the system for each operation, which costs
    the zeroing of all their pages.
    """
    library = _glibc()
    if library is not None and any(library.mallopt(MMAP_THRESHOLD, size) for size in (NEVER, LARGEST_THRESHOLD)):
        library.mallopt(TRIM_THRESHOLD, NEVER)


def give_back_freed_memory() -> None:
    """Return all memory that this process has freed to the system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> Any:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None
