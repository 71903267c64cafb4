"""Whose latencies a table has."""

import platform

from nas.latency.settings import processor_name


def test_processors_of_one_name_differ() -> None:
    """Clouds name all generations alike, and one model took 4.2 ms on one and 13.3 ms on another."""
    milan = {"cpu_name": "AMD EPYC", "sse4_2": True, "avx2": True, "avx512_f": False, "avx512_bf16": False}
    assert processor_name(milan) == "AMD EPYC, avx2"
    assert processor_name(milan | {"avx512_f": True, "avx512_bf16": True}) == "AMD EPYC, avx2, avx512_f, avx512_bf16"


def test_a_processor_without_a_name() -> None:
    assert processor_name({"cpu_name": ""}) == processor_name({}) == platform.machine()
