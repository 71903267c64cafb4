"""Sub-spaces against all of the table, budgets of searches, and costs against ledgers that were really written."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import mean, stdev

import optuna
import pytest

from benchmarks.search.coarse_to_fine import (
    SCHEMES,
    Scores,
    View,
    best,
    everything,
    lower,
    near,
    pairs,
    run_stage,
    search,
    second_sizes,
    summary,
    upper,
)
from benchmarks.search.coarse_to_fine_demo import Spent, differences, spent_by
from benchmarks.search.orchestration import demo_space
from benchmarks.search.table import LABELS, Table, load
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.description import Parameters
from nas.study.names import CONFIRMATION
from nas.study.storage import sqlite_url
from search_spaces import neighbourhood
from search_spaces.architecture import Architecture

RANDOM = SAMPLERS["random"]


@pytest.fixture(scope="module")
def table() -> Table:
    return load()


@pytest.fixture(scope="module")
def scores(table: Table) -> Scores:
    """A few of the table; the best one has sizes from both ends of the list."""
    some = dict(random.Random(1).sample(sorted(table.scores.items(), key=lambda row: repr(row[0])), 40))
    sizes = sorted(table.space.expansions)
    assert {sizes[0], sizes[-1]} & {genes.expansion for genes in best(some).layers}
    return some


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(level)


def places(table: Table, architecture: Architecture) -> list[int]:
    sizes = sorted(table.space.expansions)
    return [sizes.index(genes.expansion) for genes in architecture.layers]


def test_the_whole_space_is_the_table(table: Table) -> None:
    assert table.space.size_count() == len(table.scores)
    assert all(architecture in table.space for architecture in table.scores)


def test_members_of_views_are_those_of_the_table_that_their_names_say(table: Table, scores: Scores) -> None:
    own = places(table, best(scores))
    expected = {
        second_sizes: lambda row: all(place % 2 for place in row),
        pairs: lambda row: row[::2] == row[1::2],
        near: lambda row: all(abs(a - b) <= 1 for a, b in zip(row, own, strict=True)),
        lower: lambda row: row[3:] == own[3:],
        upper: lambda row: row[:3] == own[:3],
        everything: lambda row: True,
    }
    rng = random.Random(0)
    for stage, belongs in expected.items():
        view: View = stage(table.space, scores)
        members = {one for one in table.scores if belongs(places(table, one))}
        assert view.space.size_count() == len(members) > 0
        drawn = {view.whole(view.space.sample(rng)) for _ in range(len(members) * 10 if len(members) < 100 else 100)}
        assert drawn <= members
        assert len(members) > 100 or len(drawn) > 0.9 * len(members)
        near_by = islice(neighbourhood.neighbours(view.space, view.space.sample(rng), rng), 10)
        assert {view.whole(one) for one in near_by} <= members


def test_a_stage_spends_its_budget_on_what_is_new_to_it(table: Table, scores: Scores) -> None:
    new = run_stage(table, View(table.space), RANDOM, 0, scores, 15)
    assert len(new) == 15
    assert not new.keys() & scores.keys()
    assert new.items() <= table.scores.items()


def test_a_stage_ends_when_it_has_seen_all(table: Table, scores: Scores) -> None:
    view = lower(table.space, scores)
    start = {best(scores): scores[best(scores)]}
    new = run_stage(table, view, RANDOM, 0, start, 200)
    assert len(new) == view.space.size_count() - 1
    assert len(run_stage(table, pairs(table.space, {}), RANDOM, 0, {}, 50)) == 7


@pytest.mark.parametrize("name", ["lanas", "evolution"])
def test_a_short_search_is_the_beginning_of_a_long_one(table: Table, name: str) -> None:
    """So the first stage need not be run again for every budget."""
    long = run_stage(table, View(table.space), SAMPLERS[name], 3, {}, 20)
    short = run_stage(table, View(table.space), SAMPLERS[name], 3, {}, 14)
    assert list(long)[:14] == list(short)


class Counted(dict[Architecture, float]):
    """Scores that remember which of them were read."""

    def __init__(self, scores: Scores) -> None:
        super().__init__(scores)
        self.asked: dict[Architecture, None] = {}

    def __getitem__(self, key: Architecture) -> float:
        self.asked[key] = None
        return super().__getitem__(key)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_schemes_spend_the_budget(table: Table, scheme: str, memory: bool) -> None:
    stages, budget = SCHEMES[scheme], 30
    begun = run_stage(table, stages[0][0](table.space, {}), RANDOM, 1, {}, budget)
    counted = Counted(table.scores)
    best_score = search(replace(table, scores=counted), stages, RANDOM, 1, budget, memory, begun)
    first = dict(islice(begun.items(), round(stages[0][1] * budget)))
    evaluated = first | dict.fromkeys(counted.asked)
    assert best_score == max(table.scores[one] for one in evaluated)
    # Without the ledger of the stages before, what they evaluated may be evaluated again.
    assert len(evaluated) == budget if memory or len(stages) == 1 else len(evaluated) <= budget


def test_the_summary_of_searches() -> None:
    assert summary([0.8, 0.82, 0.81, 0.81], 0.81) == f"0.8100 ± {stdev([0.8, 0.82, 0.81, 0.81]) / 2:.4f}, 75%"


def test_costs_are_those_of_the_ledger(tmp_path: Path) -> None:
    url, space = sqlite_url(tmp_path / "study.db"), demo_space()
    rng = random.Random(0)

    def trials(name: str, seconds: list[float], origin: str = "random") -> None:
        study = ledger.open_study(url, name)
        for one in seconds:
            ledger.enqueue(study, Parameters.of(space), space.sample(rng), origin)
            trial, _ = ledger.ask(study, space, origin, LABELS)
            ledger.complete(study, trial.number, 0.8, {"seconds": one})

    trials("stage-1", [10.0, 12.0])
    trials(CONFIRMATION, [20.0], "stage-1 trial 0")
    trials("stage-2", [11.0])
    trials(CONFIRMATION, [21.0, 22.0], "stage-2 trial 0")
    trials("stage-3", [1.0, 2.0, 3.0])
    trials(CONFIRMATION, [23.0], "stage-3 trial 1")
    spent = spent_by(url, ("1", "2", "3"), workers=2)
    assert spent.trials == {"1": 2, "2": 1, "3": 3}
    assert spent.stages == {"1": 22, "2": 11, "3": 6}
    assert spent.confirmations == {"1": 20, "2": 43, "3": 23}
    begun = ledger.open_study(url, "stage-3").trials[0].datetime_start
    before = ledger.open_study(url, CONFIRMATION).trials[2].datetime_complete
    assert begun is not None and before is not None
    assert spent.supernet == pytest.approx(2 * (begun - before).total_seconds())
    assert spent.total == pytest.approx(22 + 11 + 6 + 20 + 43 + 23 + spent.supernet)
    assert spent_by(url, ("3",), workers=2).confirmations == {"3": 23}


def test_as_many_trials_as_cost_the_same() -> None:
    spent = Spent({"1": 24, "3": 100}, {"1": 240.0, "3": 200.0}, {"1": 60.0, "3": 40.0}, 100.0)
    assert spent.total == 640
    assert spent.affordable("1", 60 + 58 * 10) == 58
    assert spent.affordable("3", 100 + 40 + 250 * 2) == 250
    assert spent.affordable("3", 10.0) == 1


def test_differences_are_taken_search_by_search() -> None:
    rows = [{"all": 0.81, "1": 0.80, "3": 0.79}, {"all": 0.82, "1": 0.83, "3": 0.79}]
    columns, lines = differences(rows)
    assert columns == ["seed", "all", "1", "3", "all - 1", "all - 3"]
    assert lines[0] == [0, "0.8100", "0.8000", "0.7900", "+0.0100", "+0.0200"]
    assert differences(rows[:1]) == (columns, lines[:1])
    error = stdev([0.01, -0.01]) / 2**0.5
    assert lines[2][4] == f"{mean([0.01, -0.01]):+.4f} ± {error:.4f}"
