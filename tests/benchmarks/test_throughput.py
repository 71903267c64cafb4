"""The lengths of the sequences, and the benchmark at its smallest size."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.throughput import LENGTHS, SETTINGS, sequences
from tests.benchmarks.tables import cells_of


def test_lengths_have_the_quantiles_of_the_task() -> None:
    lengths = np.diff(sequences(4000, LENGTHS["sst2"]).offsets)
    assert np.quantile(lengths, (0.5, 0.9)) == pytest.approx(LENGTHS["sst2"], rel=0.1)
    assert set(np.diff(sequences(10, LENGTHS["full"]).offsets)) == {128}


@pytest.mark.slow
def test_the_smallest_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "raw.json"
    small = ["--lengths", "sst2", "--steps", "1", "--batch", "2", "--rounds", "1", "--threads", "1"]
    assert main(["throughput", *small, "--json", str(path)]) == 0
    rates = json.loads(path.read_text())["results"]["sst2"]["sequences a second"]
    assert list(rates) == list(SETTINGS) and all(rate > 0 for (rate,) in rates.values())
    assert cells_of(capsys.readouterr().out)["reference"][1] == "1.00 ± 0.00"
