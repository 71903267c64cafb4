"""How much memory there is, and a limit on what reading a file may take of it."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


def physical_memory() -> int:
    """The bytes of memory that this machine has, or less if a control group (v2) limits this container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.exists() else ""
    return min(memory, int(text)) if text.isdigit() else memory


@contextlib.contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Bound the private writable memory of this process, all threads together, in this block: at most `size` bytes more
    than now. Files that are mapped read-only or shared do not count.

    Raises:
        MemoryError: the block needs more. Libraries may raise an OSError or a RuntimeError instead.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # The sixth field is data and stack, in pages. RLIMIT_DATA leaves the stack out, so the limit is a little larger.
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    limit = used + size if soft == resource.RLIM_INFINITY else min(soft, used + size)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
