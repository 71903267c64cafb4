"""The benchmarks of speed: their statistics, and each at its smallest size."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.latency import errors
from benchmarks.throughput import LENGTHS, SETTINGS, sequences
from tests.benchmarks.tables import cells_of


def test_errors_of_predictions() -> None:
    assert errors([1.1, 0.8, 1.0], [1.0, 1.0, 1.0]) == pytest.approx((10.0, 20.0, -10 / 3))


def test_lengths_have_the_quantiles_of_the_task() -> None:
    lengths = np.diff(sequences(4000, LENGTHS["sst2"]).offsets)
    assert np.quantile(lengths, (0.5, 0.9)) == pytest.approx(LENGTHS["sst2"], rel=0.1)
    assert set(np.diff(sequences(10, LENGTHS["full"]).offsets)) == {128}


Results = dict[str, Any]
Cells = dict[str, list[str]]


def check_latency(results: Results, cells: Cells) -> None:
    assert set(results["predicted seconds"]) == set(results["measured seconds"]) == {"teacher", "0", "1", "2"}
    assert all(0 < seconds < 1 for seconds in results["predicted seconds"].values())
    assert {"latency, undisturbed", "ratio to the teacher, median pass"} < set(cells)


def check_throughput(results: Results, cells: Cells) -> None:
    rates = results["sst2"]["sequences a second"]
    assert list(rates) == list(SETTINGS) and all(rate > 0 for (rate,) in rates.values())
    assert cells["reference"][1] == "1.00 ± 0.00"


SMALLEST: dict[str, tuple[str, Callable[[Results, Cells], None]]] = {
    "latency": ("--experts --architectures 3 --rounds 2 --threads 1", check_latency),
    "throughput": ("--lengths sst2 --steps 1 --batch 2 --rounds 1 --threads 1", check_throughput),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, check = SMALLEST[name]
    path = tmp_path / "raw.json"
    assert main([name, *options.split(), "--json", str(path)]) == 0
    check(json.loads(path.read_text())["results"], cells_of(capsys.readouterr().out))
