"""Reads a process's memory from the kernel (Linux only).

Resident memory is all pages in memory. In proportional memory every page is divided by the number of processes that
share it. Private memory is the pages that no other process has, including those of files. Anonymous memory is the pages
that belong to no file. Peaks of resident memory are the kernel's own.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
# Seconds between two looks at a process.
INTERVAL = 0.1


@dataclass(frozen=True)
class Memory:
    """Bytes of a process's memory: resident, proportional, private and anonymous."""

    rss: int
    pss: int
    private: int
    anonymous: int


def parse(text: str) -> Memory:
    """The memory that the text of `/proc/PID/smaps_rollup` describes."""
    kilobytes = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    sizes = (kilobytes["Rss"], kilobytes["Pss"], private, kilobytes["Anonymous"])
    return Memory(*(1024 * size for size in sizes))


def memory(pid: int) -> Memory:
    """The memory of a running process."""
    return parse(Path(f"/proc/{pid}/smaps_rollup").read_text())


def peak_rss() -> int:
    """The most bytes that were resident in this process at a time since `forget_peak`."""
    line = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert line
    return 1024 * int(line[1])


def forget_peak() -> None:
    """Let the peak of this process begin at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


@contextmanager
def watching(pid_of: Callable[[], int | None]) -> Iterator[list[tuple[float, Memory]]]:
    """A list that fills, in the block, with times and a process's memory at these times.

    Args:
        pid_of: the process, or None while it is not known yet. Watching ends when the process does.
    """
    samples: list[tuple[float, Memory]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(INTERVAL):
            try:
                if pid := pid_of():
                    samples.append((time.time(), memory(pid)))
            except OSError:  # the process has ended
                return

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
