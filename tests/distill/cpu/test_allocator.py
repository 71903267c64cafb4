import subprocess
import sys
from pathlib import Path

import pytest

# Prints the resident MiB with a tensor of 64 MiB, without it, and after giving back.
PROGRAM = """
import os, sys
from pathlib import Path
import torch
from distill.cpu.allocator import give_back_freed_memory, keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20

if sys.argv[1] == "kept":
    keep_freed_memory()
torch.ones(10).sum()  # threads and libraries
a = torch.ones(2**24)
there = resident()
del a
freed = resident()
give_back_freed_memory()
print(there, freed, resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is looked at in /proc")
@pytest.mark.parametrize("how", ["kept", "usual"])
def test_freed_memory_is_kept_until_it_is_given_back(how: str) -> None:
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    there, freed, after = map(int, done.stdout.split())
    given = there - 56
    assert after < given
    assert freed == pytest.approx(there, abs=8) if how == "kept" else freed < given
