import subprocess
import sys
from pathlib import Path

import pytest

from distill.heap import freed_memory_kept

# Prints the resident MiB before a tensor of 64 MiB, after it was freed, and after the block.
PROGRAM = """
import contextlib, os, sys
from pathlib import Path
import torch
from distill.heap import freed_memory_kept

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20

with freed_memory_kept() if sys.argv[1] == "kept" else contextlib.nullcontext():
    torch.ones(2**24).sum()  # threads and libraries
    first = resident()
    a = torch.ones(2**24)
    there = resident()
    del a
    freed = resident()
after = resident()
torch.ones(2**24)
print(first, there, freed, after, resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is looked at in /proc")
@pytest.mark.parametrize("how", ["kept", "usual"])
def test_freed_memory_is_kept_until_the_end(how: str) -> None:
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    before, there, freed, after, later = map(int, done.stdout.split())
    if how == "kept":
        # The first tensor's memory was kept too.
        assert freed == there == pytest.approx(after + 128, abs=8)
    else:
        assert before + 64 == pytest.approx(there, abs=8)
        assert freed == pytest.approx(before, abs=8)
    assert later == pytest.approx(after, abs=8)


def test_an_error_comes_through() -> None:
    with pytest.raises(KeyError), freed_memory_kept():
        raise KeyError("x")
