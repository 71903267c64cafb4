"""The tabulated space, and the making of its first rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.tabulate import GOOD, TABLE, Table, load, members
from tests.nas.tiny_study import TinyStudy


@pytest.fixture(scope="module")
def table() -> Table:
    return load()


def test_good_architectures_are_the_best_fraction(table: Table) -> None:
    good = [score for score in table.scores.values() if score >= table.good]
    # Ties with the last of them are good too.
    assert len(good) >= int(GOOD * len(table.scores)) > len([score for score in good if score > table.good])


def test_the_table_has_all_members_of_its_space(table: Table) -> None:
    assert len(table.scores) == 2901
    with np.load(TABLE) as file:
        assert list(map(tuple, file["rows"].tolist())) == list(members(table.space))


def test_the_first_rows_are_made(tiny_study: TinyStudy, tmp_path: Path) -> None:
    out, raw = tmp_path / "table.npz", tmp_path / "raw.json"
    command = ["tabulate", "--preset", str(tiny_study.preset), "--members", "3", "--out", str(out), "--json", str(raw)]
    assert main(command) == 0
    measured = json.loads(raw.read_text())["results"]["measured"]
    with np.load(out) as file, np.load(TABLE) as kept:
        assert set(file) == set(kept)
        assert json.loads(str(file["facts"])).keys() == json.loads(str(kept["facts"])).keys()
        assert [str(tuple(row)) for row in file["rows"].tolist()] == list(measured)
        assert file["accuracies"] == pytest.approx(np.array(list(measured.values())))
    assert len(measured) == 3 and all(0 <= value <= 1 for row in measured.values() for value in row)
