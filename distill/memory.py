"""How much memory there is, and a limit on what reading a file may take of it."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


def physical_memory() -> int:
    """The bytes of memory that this machine has, or a container's share of them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.exists() else ""
    return min(memory, int(text)) if text.isdigit() else memory


@contextlib.contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Let this process allocate at most `size` more bytes in this block; files that are mapped to memory do not count.

    Raises:
        MemoryError: from what is run in the block, if it needs more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # In pages: size, resident, shared, text, library, data and stack.
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    limits = [limit for limit in (soft, used + size) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
