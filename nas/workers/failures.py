"""Tells from Ray's messages and PyTorch's errors why a trial failed: it ran out of memory, or its worker was lost."""

import errno
import re
from pathlib import Path

import torch

from foundation.errors import beginning

# Ray's messages about a worker that was killed and about one whose node was lost.
LOST = re.compile(r"^The actor (died unexpectedly|\w+ is unavailable)", re.MULTILINE)
# Ray's message about a worker that it killed because the node ran out of memory.
KILLED_FOR_MEMORY = re.compile(r"^.* killed due to the node running low on memory.*$", re.MULTILINE)
# The messages of torch's RuntimeErrors when the host runs out of memory; for a GPU there is torch.OutOfMemoryError.
NO_HOST_MEMORY = re.compile(
    "DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory"
)
KERNEL_COUNTERS = Path("/proc/vmstat")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory of the host or of a GPU could not be allocated."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and bool(NO_HOST_MEMORY.search(str(error)))


def killed_by_ray(text: str) -> str | None:
    """What Ray says about a worker that it killed because memory ran out, without the address of the node; None if the
    text is about something else.
    """
    killed = KILLED_FOR_MEMORY.search(text)
    return killed and re.sub(r" [(]IP: .*?[)]", "", killed[0])


def kernel_kills() -> int:
    """How many processes the kernel of this machine has killed because memory, or that of a control group, ran out. It
    is 0 where the kernel does not count them.
    """
    try:
        counted = re.search(r"^oom_kill (\d+)$", KERNEL_COUNTERS.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return 0
    return int(counted[1]) if counted else 0


def one_line(text: str) -> str:
    """The text in one line, cut to 1000 characters."""
    return beginning(" ".join(text.split()), 1000)
