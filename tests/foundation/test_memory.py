"""The limit on the memory that reading a file may take."""

import mmap
import resource
from pathlib import Path

import pytest

from foundation.memory import limited_memory, physical_memory


def test_more_than_the_limit_is_refused() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limited_memory(100_000_000):
        assert len(bytearray(50_000_000)) == 50_000_000
    # More than the heap may have left of what earlier tests have freed.
    with pytest.raises(MemoryError), limited_memory(100_000_000):
        bytearray(10_000_000_000)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(200_000_000)) == 200_000_000


def test_a_lower_limit_of_the_process_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limited_memory(100_000_000):
        lower = resource.getrlimit(resource.RLIMIT_DATA)
        with limited_memory(10**12):
            assert resource.getrlimit(resource.RLIMIT_DATA) == lower
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_mapped_files_do_not_count(tmp_path: Path) -> None:
    """Data sets on disk, which libraries map to memory, may be larger than the memory."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(10_000_000_000)
    with path.open("rb") as file, limited_memory(1_000_000), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
        assert len(m) == 10_000_000_000


def test_the_memory_of_this_machine() -> None:
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < physical_memory() <= total
