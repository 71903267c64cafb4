"""What is read of processes, against psutil and known allocations, and a short run."""

import gc
import json
import mmap
import os
from pathlib import Path

import psutil
import pytest

from benchmarks.__main__ import main
from benchmarks.memory import MIB, forget_peak, growth_per, memory, parse, peak_rss
from tests.benchmarks.tables import cells_of
from tests.nas.tiny_study import TinyStudy

ROLLUP = """\
555a1be23000-7ffdb7af2000 ---p 00000000 00:00 0                          [rollup]
Rss:                1760 kB
Pss:                 268 kB
Pss_Dirty:           116 kB
Shared_Clean:       1500 kB
Shared_Dirty:        100 kB
Private_Clean:        44 kB
Private_Dirty:       116 kB
Private_Hugetlb:       0 kB
Anonymous:           110 kB
AnonHugePages:         0 kB
"""


def test_the_kernel_s_summary() -> None:
    found = parse(ROLLUP)
    assert (found.rss, found.pss, found.private, found.anonymous) == (1760 * 1024, 268 * 1024, 160 * 1024, 110 * 1024)


def test_memory_is_psutil_s() -> None:
    expected = psutil.Process().memory_full_info()
    found = memory(os.getpid())
    assert (found.rss, found.pss, found.private) == pytest.approx(
        (expected.rss, expected.pss, expected.uss), rel=0.02, abs=2 * MIB
    )


def test_peaks_are_of_memory_that_is_gone_and_can_be_forgotten() -> None:
    gc.collect()
    forget_peak()
    before = peak_rss()
    # Not from the heap, which may keep what is freed.
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE) as more:
        for _ in range(64):
            more.write(b"x" * MIB)
        assert memory(os.getpid()).anonymous > 64 * MIB
    assert peak_rss() - before > 60 * MIB
    forget_peak()
    assert peak_rss() - before < 30 * MIB


def test_growth_is_a_least_squares_line() -> None:
    counts = [1, 250, 500, 1000]
    assert growth_per(counts, [7 + 3 * 1024 * count for count in counts], "trial") == "+3.0 ± 0.0 KiB per trial"
    # The residuals are -1/2, 1, -1/2: their squares, 3/2 with one degree of freedom, over 2 of the counts'.
    assert growth_per([0, 1, 2], [0, 2048, 1024], "trial") == "+0.5 ± 0.9 KiB per trial"
    assert growth_per([1, 2], [1, 2], "trial") == "too few for a slope per trial"


@pytest.mark.slow
def test_a_worker_is_measured(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "raw.json"
    assert main(["memory", "--preset", str(tiny_study.preset), "--candidates", "3", "--json", str(path)]) == 0
    assert len(json.loads(path.read_text())["results"]["worker"]) == 4
    lines = cells_of(capsys.readouterr().out)
    resident, proportional, private, _, peak = map(int, lines["after 1"])
    assert private <= proportional <= resident <= peak
