"""What every sampler must do, and what each does."""

import random
from collections import Counter
from fractions import Fraction

import optuna
import pytest

from nas import ledger
from nas.samplers import SAMPLERS
from nas.samplers.tpe import START
from search_spaces import Architecture, Base, Space, cost
from search_spaces.graph import GELU

BASE = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)
MIDDLE = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 3)
EXPANSIONS = (Fraction(1), Fraction(1, 2), Fraction(1, 4))
SPACE = Space(BASE, (1, 2), EXPANSIONS, MIDDLE - 2000, MIDDLE, edit_rate=0.5)


def history(sampler: str, seed: int, count: int, space: Space = SPACE, scores: str = "random") -> list[Architecture]:
    """Draws told random, equal or tied scores, every fifth of them failing."""
    study = optuna.create_study(direction="maximize", sampler=SAMPLERS[sampler](space, seed))
    ledger.enqueue(study, Architecture.uniform(BASE), "base model")
    drawn = []
    for _ in range(count + 1):
        trial, architecture = ledger.ask(study, space, sampler, labels=3)
        drawn.append(architecture)
        if trial.number % 5 == 4:
            ledger.fail(study, trial.number, "diverged")
            continue
        draw = random.Random(trial.number).random()
        score = {"random": draw, "equal": 0.5, "tied": round(draw)}[scores]
        ledger.complete(study, trial.number, score, {})
    return drawn[1:]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("scores", ["random", "equal", "tied"])
def test_draws_are_in_the_box_and_decided_by_the_seed(
    sampler: str, scores: str, caplog: pytest.LogCaptureFixture
) -> None:
    optuna.logging.enable_propagation()
    try:
        first = history(sampler, 3, 30, scores=scores)
    finally:
        optuna.logging.disable_propagation()
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    assert all(SPACE.min_params <= cost.params(found, 3) <= SPACE.max_params for found in first)
    assert history(sampler, 3, 30, scores=scores) == first
    other = history(sampler, 4, 30, scores=scores)
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 5
    assert len(set(first)) > 20


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_next_draw_needs_only_the_record(sampler: str) -> None:
    """A new process with the same study draws what the old one would have drawn."""
    storage = optuna.storages.InMemoryStorage()

    def ask(name: str, fresh: bool) -> list[Architecture]:
        found = []
        study = None
        for number in range(20):
            if study is None or fresh:
                study = optuna.create_study(
                    storage=storage,
                    study_name=name,
                    direction="maximize",
                    sampler=SAMPLERS[sampler](SPACE, 0),
                    load_if_exists=True,
                )
            trial, architecture = ledger.ask(study, SPACE, sampler, labels=3)
            ledger.complete(study, trial.number, random.Random(number).random(), {})
            found.append(architecture)
        return found

    assert ask("one process", fresh=False) == ask("a process per trial", fresh=True)


def test_random_keeps_to_the_rate_of_edits() -> None:
    never = Space(BASE, (1, 2), EXPANSIONS, MIDDLE - 2000, MIDDLE, edit_rate=0.0)
    assert {genes.graph for found in history("random", 0, 30, never) for genes in found.layers} == {GELU}
    graphs = Counter(genes.graph == GELU for found in history("random", 0, 200) for genes in found.layers)
    # Three segments that each stay with probability 1/2; a few edits are undone where they would leave the box.
    assert 0.08 < graphs[True] / graphs.total() < 0.25


def test_tpe_is_random_at_first_and_follows_the_scores_later() -> None:
    def told(sampler: str) -> list[Architecture]:
        """Scores are the inner neurons of the first layer."""
        study = optuna.create_study(direction="maximize", sampler=SAMPLERS[sampler](SPACE, 0))
        found = []
        for _ in range(80):
            trial, architecture = ledger.ask(study, SPACE, sampler, labels=3)
            ledger.complete(study, trial.number, good(architecture), {})
            found.append(architecture)
        return found

    def good(architecture: Architecture) -> float:
        lowest = architecture.layers[0]
        return lowest.stack * lowest.inner(architecture.base)

    by_random, by_tpe = told("random"), told("tpe")
    assert by_random[:START] == by_tpe[:START]
    assert by_random[START] != by_tpe[START]
    late = slice(40, 80)
    assert sum(map(good, by_tpe[late])) > 1.2 * sum(map(good, by_random[late]))
    assert [a.layers[0].graph for a in by_tpe] == [a.layers[0].graph for a in by_random]
