"""Which trials are confirmed, and which of them wins."""

import json
from fractions import Fraction
from itertools import product

import optuna
import pytest

from nas.finalists import WINNER, finalists, summary
from nas.study import ledger
from nas.study.description import Parameters
from search_spaces import Architecture, Base, Genes, Space, cost
from search_spaces.graph import GELU

BASE = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)
HALF = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 4)
SPACE = Space(BASE, (1, 2), (Fraction(1, 4), Fraction(1, 2), Fraction(1)), HALF - 1000, HALF, 0.1, labels=4)


def study_of(*rows: tuple[Architecture, float | None], origin: str = "random") -> optuna.Study:
    """A study in memory with these scores; None means that the trial failed."""
    study = optuna.create_study(direction="maximize")
    for architecture, score in rows:
        ledger.enqueue(study, Parameters.of(SPACE), architecture, origin)
        trial, _ = ledger.ask(study, SPACE, origin, labels=4)
        if score is None:
            ledger.fail(study, trial.number, "diverged")
        else:
            ledger.complete(study, trial.number, score, {"standard_error": 0.01})
    return study


def inside(count: int) -> list[Architecture]:
    space = SPACE
    sizes = product((1, 2), (Fraction(1, 4), Fraction(1, 2), Fraction(1)))
    options = [Genes(GELU, stack, expansion) for stack, expansion in sizes]
    every = (Architecture(BASE, layers) for layers in product(options, repeat=3))
    fitting = [found for found in every if space.min_params <= cost.params(found, 4) <= space.max_params]
    return fitting[:count]


def test_finalists_are_the_best_different_ones_inside_the_box() -> None:
    a, b, c, d = inside(4)
    big, small = Architecture.uniform(BASE), Architecture.uniform(BASE, expansion=Fraction(1, 4))
    rows = [(big, 0.99), (small, 0.98), (a, 0.5), (b, 0.7), (a, 0.8), (c, None), (d, 0.7), (b, 0.6)]
    study = study_of(*rows)
    chosen = finalists(study, 10)
    assert [(trial.number, trial.value) for trial in chosen] == [(4, 0.8), (3, 0.7), (6, 0.7)]
    assert [ledger.architecture_of(trial) for trial in chosen] == [a, b, d]
    assert finalists(study, 2) == chosen[:2]
    assert finalists(study_of((big, 0.9), (a, None)), 3) == []


def confirmed(study: optuna.Study, count: int, **scores: list[float]) -> dict:
    """The summary of a study whose finalists, by their trial numbers, got these scores in the confirmation."""
    ranked = finalists(study, count)
    fresh = {trial.user_attrs[ledger.FUNCTION]: scores.get(f"trial{trial.number}", []) for trial in ranked}
    best = summary(ranked, fresh, study)
    assert best["winner"] in best["finalists"]
    assert json.loads(json.dumps(best)) == best
    return best


def test_the_best_confirmed_mean_wins() -> None:
    a, b, c = inside(3)
    study = study_of((a, 0.9), (b, 0.8), (c, 0.7))
    best = confirmed(study, 3, trial0=[0.60, 0.70], trial1=[0.75, 0.71], trial2=[0.74])
    assert best["winner"]["trial"] == 2
    assert Architecture.from_json(best["winner"]["architecture"]) == c
    assert [row["confirmed_mean"] for row in best["finalists"]] == pytest.approx([0.65, 0.73, 0.74])
    assert best["finalists"][1]["confirmed_deviation"] == pytest.approx(0.04 / 2**0.5)
    assert best["finalists"][2]["confirmed_deviation"] is None


def test_without_confirmation_the_best_score_wins() -> None:
    a, b = inside(2)
    best = confirmed(study_of((a, 0.8), (b, 0.9)), 3)
    assert best["winner"]["trial"] == 1
    assert best["winner"]["confirmed_mean"] is None


def test_a_failed_confirmation_never_wins_over_a_confirmed_one() -> None:
    a, b = inside(2)
    assert confirmed(study_of((a, 0.9), (b, 0.8)), 3, trial1=[0.6])["winner"]["trial"] == 1


def test_what_a_stage_refines_is_always_a_finalist() -> None:
    a, b, c = inside(3)
    study = study_of((a, 0.5), origin=WINNER)
    for architecture, score in ((b, 0.8), (c, 0.9)):
        ledger.enqueue(study, Parameters.of(SPACE), architecture, "random")
        ledger.complete(study, ledger.ask(study, SPACE, "random", 4)[0].number, score, {"standard_error": 0.01})
    assert [trial.number for trial in finalists(study, 1)] == [2, 0]
    assert [trial.number for trial in finalists(study, 3)] == [2, 1, 0]


def test_the_front_of_two_goals() -> None:
    scores = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    rows = list(zip(inside(6), scores, strict=True))
    study = optuna.create_study(directions=["maximize", "minimize"])
    study.set_user_attr(ledger.GOALS, ["score", "params"])
    for architecture, score in rows:
        ledger.enqueue(study, Parameters.of(SPACE), architecture, "nsga2")
        ledger.complete(study, ledger.ask(study, SPACE, "nsga2", 4)[0].number, score, {"standard_error": 0.01})
    costs = [cost.params(architecture, 4) for architecture, _ in rows]
    assert [trial.values for trial in study.trials] == [list(pair) for pair in zip(scores, costs, strict=True)]
    best = confirmed(study, 2)
    expected = [place for place, params in enumerate(costs) if all(params < other for other in costs[:place])]
    assert [row["trial"] for row in best["front"]] == expected[::-1]
    assert [row["trial"] for row in best["finalists"]] == expected[:2]


def test_what_is_outside_the_box_is_no_rival_on_the_front() -> None:
    """The base model scores best, and another architecture is smaller than the budget allows."""
    outside = [Architecture.uniform(BASE), Architecture.uniform(BASE, expansion=Fraction(1, 4))]
    member, *_ = inside(1)
    study = optuna.create_study(directions=["maximize", "minimize"])
    study.set_user_attr(ledger.GOALS, ["score", "params"])
    for architecture, score in ((outside[0], 0.9), (member, 0.5), (outside[1], 0.6), (member, 0.5)):
        ledger.enqueue(study, Parameters.of(SPACE), architecture, "nsga2")
        number = ledger.ask(study, SPACE, "nsga2", 4)[0].number
        if not ledger.resolve_duplicate(study, number):
            ledger.complete(study, number, score, {"standard_error": 0.01})
    best = confirmed(study, 2)
    assert [row["trial"] for row in best["front"]] == [row["trial"] for row in best["finalists"]] == [1]
