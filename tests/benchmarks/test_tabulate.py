"""The tabulated spaces, what can be asked of them, and the making of their first rows."""

import json
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.__main__ import main
from benchmarks.common import BenchmarkError
from benchmarks.tabulate import FFNS, GOOD, LAYERS, SETTINGS, TRAINED, Table, load, path_of
from search_spaces import Architecture, cost
from search_spaces.spaces import SpaceError
from tests.nas.tiny_study import TinyStudy

COMPENSATED = '[supernet]\norder = "reconstruction"\ninheritance = "compensated"\ncalibration_rows = 100\n\n'


@pytest.fixture(scope="module", params=SETTINGS)
def table(request: pytest.FixtureRequest) -> Table:
    return load(request.param)


def test_good_architectures_are_the_best_fraction(table: Table) -> None:
    good = [score for score in table.scores.values() if score >= table.good]
    # Ties with the last of them are good too.
    assert len(good) >= int(GOOD * len(table.scores)) > len([score for score in good if score > table.good])


@pytest.mark.parametrize(("name", "members"), [(FFNS, 2901), (LAYERS, 451)])
def test_a_table_has_all_members_of_its_space(name: str, members: int) -> None:
    """Those whose layers' parameters sum to what the budget allows; all else of the model is always there."""
    space = load(name).space
    uniform = Architecture.uniform
    params = [
        cost.params(uniform(space.base, expansion=expansion).with_heads([heads] * space.base.depth), space.num_labels)
        for heads in space.genes["heads"]
        for expansion in space.genes["expansion"]
    ]
    # What is added in one layer is a sixth of what is added in all six.
    added = (np.array(params) - params[0]) // space.base.depth
    sums = params[0] + reduce(np.add.outer, [added] * space.base.depth)
    rows = np.argwhere((space.min_params <= sums) & (sums <= space.max_params))
    with np.load(path_of(name)) as file:
        assert np.array_equal(file["rows"] @ [len(space.genes["expansion"]), 1], rows)
    assert len(rows) == members


def test_queries(table: Table) -> None:
    first, *_, last = table.members
    assert list(table.query(first)) == list(table.names[: len(table.query(first))])
    assert table.query(last) != table.query(first)
    assert table.scores[last] == pytest.approx(
        np.mean([table.query(last)[table.names[place]] for place in table.score])
    )
    with pytest.raises(SpaceError, match="not a member of the space: "):
        table.query(Architecture.uniform(table.space.base))
    few = replace(table, members={first: 0})
    with pytest.raises(BenchmarkError, match="only the first members"):
        few.query(last)


def test_the_untrained_fidelity_ranks_those_that_were_trained() -> None:
    table = load(LAYERS)
    trained = {one: table.query(one)[TRAINED] for one in table.members if TRAINED in table.query(one)}
    assert len(trained) == 30
    assert kendalltau([table.scores[one] for one in trained], list(trained.values())).pvalue < 0.01


@pytest.mark.parametrize("name", SETTINGS)
def test_the_first_rows_are_made(name: str, tiny_study: TinyStudy, tmp_path: Path) -> None:
    out, raw = tmp_path / "table.npz", tmp_path / "raw.json"
    changes = (("stacks = [1, 2]", "stacks = [1]\nheads = [1, 4]"), ("[stage1]\n", f"{COMPENSATED}[stage1]\n"))
    preset = tiny_study.variant(tmp_path / "layers.toml", *changes) if name == LAYERS else tiny_study.preset
    command = ["tabulate", "--space", name, "--preset", str(preset), "--members", "3", "--trained", "1"]
    assert main([*command, "--out", str(out), "--json", str(raw)]) == 0
    measured = json.loads(raw.read_text())["results"]["measured"]
    with np.load(out) as file, np.load(path_of(name)) as kept:
        assert set(file) == set(kept)
        assert json.loads(str(file["facts"])).keys() == json.loads(str(kept["facts"])).keys()
        rows, figures = [str(tuple(map(tuple, row))) for row in file["rows"].tolist()], file["figures"]
    trained = {row: measured.pop(f"{row}, trained") for row in rows if f"{row}, trained" in measured}
    assert list(measured) == rows and len(trained) == (name == LAYERS)
    for row, of_row in zip(rows, figures.tolist(), strict=True):
        expected = measured[row] + ([trained.get(row, np.nan)] if name == LAYERS else [])
        assert of_row == pytest.approx(expected, nan_ok=True)
        assert all(0 <= value <= 1 for value in measured[row])
