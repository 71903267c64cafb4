"""The tabulated spaces, and what can be asked of them."""

from functools import reduce

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.tabulated import FFNS, GOOD, LAYERS, SPACES, TRAINED, Table, load, path_of
from search_spaces import Architecture, cost
from search_spaces.spaces import SpaceError


@pytest.fixture(scope="module", params=SPACES)
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


def test_the_untrained_fidelity_ranks_those_that_were_trained() -> None:
    table = load(LAYERS)
    trained = {one: table.query(one)[TRAINED] for one in table.members if TRAINED in table.query(one)}
    assert len(trained) == 30
    assert kendalltau([table.scores[one] for one in trained], list(trained.values())).pvalue < 0.01
