"""The tabulated space, and the making of its first rows."""

import numpy as np

from benchmarks import tabulate
from benchmarks.tabulate import GOOD, load, members


def test_good_architectures_are_the_best_fraction() -> None:
    table = load()
    good = [score for score in table.scores.values() if score >= table.good]
    # Ties with the last of them are good too.
    assert len(good) >= int(GOOD * len(table.scores)) > len([score for score in good if score > table.good])


def test_the_table_has_all_members_of_its_space() -> None:
    table = load()
    assert len(table.scores) == 2901
    assert all(architecture in table.space for architecture in list(table.scores)[:50])
    with np.load(tabulate.TABLE) as file:
        assert list(map(tuple, file["rows"].tolist())) == list(members(table.space))
