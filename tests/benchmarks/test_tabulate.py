"""The tabulated space, and the making of its first rows."""

import json
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.tabulate import GOOD, LABELS, TABLE, Table, load
from search_spaces import Architecture, cost
from tests.nas.tiny_study import TinyStudy


@pytest.fixture(scope="module")
def table() -> Table:
    return load()


def test_good_architectures_are_the_best_fraction(table: Table) -> None:
    good = [score for score in table.scores.values() if score >= table.good]
    # Ties with the last of them are good too.
    assert len(good) >= int(GOOD * len(table.scores)) > len([score for score in good if score > table.good])


def test_the_table_has_all_members_of_its_space(table: Table) -> None:
    """Those whose layers' parameters sum to what the budget allows; all else of the model is always there."""
    space, expansions = table.space, table.space.genes["expansion"]
    params = [cost.params(Architecture.uniform(space.base, expansion=one), LABELS) for one in expansions]
    # A larger expansion adds in one layer a sixth of what it adds in all six.
    added = (np.array(params) - params[0]) // space.base.depth
    sums = params[0] + reduce(np.add.outer, [added] * space.base.depth)
    rows = np.argwhere((space.min_params <= sums) & (sums <= space.max_params))
    assert len(rows) == len(table.scores) == 2901
    with np.load(TABLE) as file:
        assert np.array_equal(file["rows"], rows)


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
