"""The benchmark of predicted latencies: its statistics, and its smallest size."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.latency import errors
from tests.benchmarks.tables import cells_of


def test_errors_of_predictions() -> None:
    assert errors([1.1, 0.8, 1.0], [1.0, 1.0, 1.0]) == pytest.approx((10.0, 20.0, -10 / 3))


@pytest.mark.slow
def test_the_smallest_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "raw.json"
    options = ("--experts", "--architectures", "3", "--rounds", "2", "--threads", "1")
    assert main(["latency", *options, "--json", str(path)]) == 0
    results = json.loads(path.read_text())["results"]
    assert set(results["predicted seconds"]) == set(results["measured seconds"]) == {"teacher", "0", "1", "2"}
    assert all(0 < seconds < 1 for seconds in results["predicted seconds"].values())
    assert {"latency, undisturbed", "ratio to the teacher, median pass"} < set(cells_of(capsys.readouterr().out))
