"""What is read of processes, against psutil and known allocations; what a backward pass keeps, by its definition."""

import gc
import mmap
import os
import subprocess
import sys

import psutil
import pytest
import torch

from benchmarks.memory.memory import slope
from benchmarks.memory.process_memory import MIB, forget_peak, memory, parse, peak_rss, watching
from benchmarks.memory.training_memory import kept_for_backward

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


def test_looking_at_another_process_until_it_ends() -> None:
    program = f"held = bytearray(b'x') * {32 * MIB}; print(); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        with watching(lambda: process.pid) as seen:
            while not seen:
                pass
            process.stdin.close()
            process.wait()
    times = [at for at, _ in seen]
    assert times == sorted(times)
    assert all(32 * MIB < one.anonymous <= one.private <= one.pss <= one.rss for _, one in seen[:1])


def test_the_slope() -> None:
    counts = [1, 250, 500, 1000]
    assert slope(counts, [7 + 3 * count for count in counts]) == (pytest.approx(3), pytest.approx(0, abs=1e-6))
    found, deviation = slope([0, 1, 2], [0, 2, 1])
    # The residuals are -1/2, 1, -1/2: their squares, 3/2 with one degree of freedom, over 2 of the counts'.
    assert (found, deviation) == (pytest.approx(0.5), pytest.approx((1.5 / 2) ** 0.5))


def test_what_is_kept_for_the_backward_pass() -> None:
    linear = torch.nn.Linear(8, 16)
    x_BD = torch.ones(4, 8)
    with kept_for_backward({parameter.untyped_storage().data_ptr() for parameter in linear.parameters()}) as kept:
        y_BE = linear(x_BD).relu()
        # The input for the weight's gradient, and the output for relu's.
        assert sorted(kept.values()) == [4 * 4 * 8, 4 * 4 * 16]
        (y_BE[:, :1] * y_BE[:, 1:2]).sum()
        assert sorted(kept.values()) == [4 * 4 * 8, 4 * 4 * 16]
        y_BE.sum().backward()
    assert linear.weight.grad is not None
