"""Which trials are confirmed, and which of them wins."""

import json
from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import numpy as np
import optuna
import pytest

from distill.tasks.metrics import CLASS_ACCURACY
from nas.planning.finalists import (
    ALLOCATED,
    BASE_MODEL,
    GLOBAL,
    UNIFORM,
    WINNER,
    WINNER_WITH_BASE_GRAPHS,
    Confirmation,
    confirmations,
    finalists,
    front,
    lead_line,
    summary,
)
from nas.study import ledger
from nas.study.attributes import ROWS, attribute
from nas.study.contributions import encode
from search_spaces import FFN, Architecture, Space, cost
from search_spaces.graph import GELU
from tests.tiny import BASE

HALF = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 4)
SPACE = Space(
    BASE,
    {"stack": (1, 2), "expansion": (Fraction(1, 4), Fraction(1, 2), Fraction(1))},
    HALF - 1000,
    HALF,
    0.1,
    num_labels=4,
)


def study_of(*rows: tuple[Architecture, str, float | None], two_goals: bool = False) -> optuna.Study:
    """A study in memory with trials of these origins and scores; None means that the trial failed."""
    study = optuna.create_study(directions=["maximize", "minimize"][: 1 + two_goals])
    study.set_user_attr(ledger.GOALS, ["score", "params"][: 1 + two_goals])
    for architecture, origin, score in rows:
        ledger.enqueue(study, SPACE, architecture, origin)
        number = ledger.ask(study, SPACE, origin)[0].number
        if score is None:
            ledger.fail(study, number, "diverged")
        elif not two_goals or not ledger.resolve_duplicate(study, number):
            ledger.complete(study, number, score, {"standard_error": 0.01})
    return study


def proposed(*rows: tuple[Architecture, float | None], two_goals: bool = False) -> optuna.Study:
    """A study of trials that a sampler proposed."""
    return study_of(*((architecture, "random", score) for architecture, score in rows), two_goals=two_goals)


def inside(count: int) -> list[Architecture]:
    space = SPACE
    sizes = product((1, 2), (Fraction(1, 4), Fraction(1, 2), Fraction(1)))
    options = [FFN(GELU, stack, expansion) for stack, expansion in sizes]
    every = (Architecture.of_ffns(BASE, layers) for layers in product(options, repeat=3))
    fitting = [found for found in every if space.min_params <= cost.params(found, 4) <= space.max_params]
    return fitting[:count]


def test_finalists_are_the_best_different_ones_inside_the_box() -> None:
    a, b, c, d = inside(4)
    big, small = Architecture.uniform(BASE), Architecture.uniform(BASE, expansion=Fraction(1, 4))
    rows = [(big, 0.99), (small, 0.98), (a, 0.5), (b, 0.7), (a, 0.8), (c, None), (d, 0.7), (b, 0.6)]
    study = proposed(*rows)
    chosen = finalists(study, 10)
    assert [(trial.number, trial.value) for trial in chosen] == [(4, 0.8), (3, 0.7), (6, 0.7)]
    assert [ledger.architecture_of(trial) for trial in chosen] == [a, b, d]
    assert finalists(study, 2) == chosen[:2]
    assert finalists(proposed((big, 0.9), (a, None)), 3) == []


def confirmed(study: optuna.Study, count: int, **scores: list[float]) -> dict:
    """The summary of a study whose finalists, by their trial numbers, got these scores in the confirmation."""
    ranked = finalists(study, count)
    fresh = {
        attribute(trial, ledger.FUNCTION): {
            seed: Confirmation(score) for seed, score in enumerate(scores.get(f"trial{trial.number}", []))
        }
        for trial in ranked
    }
    best = summary(ranked, fresh, study, CLASS_ACCURACY)
    assert best["winner"] in best["finalists"]
    assert json.loads(json.dumps(best)) == best
    return best


def test_the_best_confirmed_mean_wins() -> None:
    a, b, c = inside(3)
    study = proposed((a, 0.9), (b, 0.8), (c, 0.7))
    best = confirmed(study, 3, trial0=[0.60, 0.70], trial1=[0.75, 0.71], trial2=[0.74])
    assert best["winner"]["trial"] == 2
    assert Architecture.from_json(best["winner"]["architecture"]) == c
    assert [row["confirmed_mean"] for row in best["finalists"]] == pytest.approx([0.65, 0.73, 0.74])
    assert best["finalists"][1]["confirmed_deviation"] == pytest.approx(0.04 / 2**0.5)
    assert best["finalists"][2]["confirmed_deviation"] is None
    # One whose confirmation has failed never wins over another one; without any the best score wins.
    assert confirmed(study, 3, trial1=[0.6])["winner"]["trial"] == 1
    best = confirmed(study, 3)
    assert (best["winner"]["trial"], best["winner"]["confirmed_mean"]) == (0, None)


def test_global_importance_is_always_a_finalist() -> None:
    a, b, c = inside(3)
    study = study_of((a, GLOBAL, 0.5), (b, ALLOCATED[0], 0.8), (c, "random", 0.9))
    assert [trial.number for trial in finalists(study, 1)] == [2, 1, 0]


def test_a_search_never_hands_on_less_than_its_best_baseline() -> None:
    """The base model, which scores best, exceeds the budget; of the others the best baseline is confirmed."""
    a, b, c, d = inside(4)
    big = Architecture.uniform(BASE)
    study = study_of(
        (big, BASE_MODEL, 0.9), (a, UNIFORM, 0.5), (b, GLOBAL, 0.6), (c, "random", 0.8), (d, "random", 0.7)
    )
    assert [trial.number for trial in finalists(study, 1)] == [3, 2]
    assert [trial.number for trial in finalists(study, 2)] == [3, 4, 2]
    assert [trial.number for trial in finalists(study, 9)] == [3, 4, 2, 1]
    assert confirmed(study, 1, trial3=[0.6, 0.7], trial2=[0.7, 0.7])["winner"]["origin"] == GLOBAL
    # The best baseline of a stage that refines an architecture may be another one.
    refining = [(a, WINNER, 0.5), (b, WINNER_WITH_BASE_GRAPHS, 0.6), (c, "random", 0.8)]
    assert [trial.number for trial in finalists(study_of(*refining), 1)] == [2, 1, 0]
    # A candidate that computes what the best baseline computes is confirmed only once.
    same = study_of((b, GLOBAL, 0.6), (b, "random", 0.6), (a, "random", 0.5))
    assert [trial.number for trial in finalists(same, 1)] == [0]


ROWS_OF_SEEDS = np.random.default_rng(0).random((3, 2, 400)) < np.array([0.8, 0.7, 0.6])[:, None, None]


def confirmation_of(study: optuna.Study, rows: dict[int, dict[int, np.ndarray]], stored: bool = True) -> dict:
    """The summary of a study whose trials (trial -> seed -> rows, of 0 and 1) were confirmed."""
    confirmation = optuna.create_study(direction="maximize")
    for number, of_seeds in rows.items():
        for seed, correct in of_seeds.items():
            architecture = ledger.architecture_of(study.trials[number])
            ledger.enqueue(confirmation, SPACE, architecture, f"stage-1 trial {number}", seed)
            trial, _ = ledger.ask(confirmation, SPACE, "confirmation")
            kept = {ROWS: encode(correct)} if stored else {}
            ledger.complete(confirmation, trial.number, correct.mean(), {"standard_error": 0.01} | kept)
    ranked = finalists(study, 1)
    best = summary(
        ranked,
        confirmations(confirmation, [attribute(trial, ledger.FUNCTION) for trial in ranked], [1, 2]),
        study,
        CLASS_ACCURACY,
    )
    assert json.loads(json.dumps(best)) == best
    return best


def test_leads_over_the_best_confirmed_baseline() -> None:
    """Of two confirmed baselines the one with the lower score has the better confirmation."""
    a, b, c = inside(3)
    study = study_of((a, WINNER, 0.5), (b, WINNER_WITH_BASE_GRAPHS, 0.6), (c, "random", 0.8))
    best, middle, worst = ROWS_OF_SEEDS
    seeds = [{number: dict(zip((1, 2), rows, strict=True))} for number, rows in ((2, best), (0, middle), (1, worst))]
    found = confirmation_of(study, seeds[0] | seeds[1] | seeds[2])
    leads = {row["trial"]: row["lead"] for row in found["finalists"]}
    assert list(leads) == [2, 1, 0]
    assert {(lead["over"], lead["over_trial"]) for lead in leads.values()} == {(WINNER, 0)}
    for number, rows in ((2, best), (1, worst)):
        difference = rows.astype(float) - middle
        assert leads[number]["value"] == pytest.approx(difference.mean())
        # At least the error of the rows, and with what the seeds differ by no more than that of two independent seeds.
        over_rows = difference.mean(axis=0).std() / 20
        assert over_rows <= leads[number]["standard_error"] < 2 * over_rows
        assert leads[number]["seeds"] == [1, 2]
    assert (leads[0]["value"], leads[0]["standard_error"]) == (0.0, 0.0)
    lead = leads[2]
    assert lead_line(found["winner"]) == (
        f"winner: {lead['value']:+.4f} ± {lead['standard_error']:.4f} over the refined architecture (paired, 2 seeds)"
    )
    assert lead_line(found["finalists"][2]) == "winner: the baseline refined architecture"


def test_leads_are_over_common_seeds() -> None:
    """The finalist failed with one seed, and the baseline has a seed that is not wanted."""
    a, b = inside(2)
    study = study_of((a, GLOBAL, 0.5), (b, "random", 0.8))
    (ours, _), (theirs, other), _ = ROWS_OF_SEEDS
    found = confirmation_of(study, {1: {1: ours}, 0: {1: theirs, 2: other, 7: other}})
    lead = found["winner"]["lead"]
    difference = ours.astype(float) - theirs
    assert lead == {
        "over": GLOBAL,
        "over_trial": 0,
        "value": pytest.approx(difference.mean()),
        "standard_error": pytest.approx(difference.std() / 20),
        "seeds": [1],
    }
    assert lead_line(found["winner"]).endswith(" over global importance (paired, 1 seed)")  # type: ignore[union-attr]


def test_no_lead_without_a_baseline_its_confirmation_or_its_rows() -> None:
    a, b = inside(2)
    (ours, _), (theirs, _), _ = ROWS_OF_SEEDS
    baseline, none = (study_of((a, origin, 0.5), (b, "random", 0.8)) for origin in (GLOBAL, "random"))
    for study, rows, stored in (
        (none, {1: {1: ours}}, True),
        (baseline, {1: {1: ours}}, True),
        (baseline, {1: {1: ours}, 0: {2: theirs}}, True),
        (baseline, {1: {1: ours}, 0: {1: theirs}}, False),
    ):
        found = confirmation_of(study, rows, stored)
        assert found["winner"]["trial"] == 1
        assert found["winner"]["lead"] is None
        assert lead_line(found["winner"]) is None


def test_the_front_of_two_goals() -> None:
    scores = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    rows = list(zip(inside(6), scores, strict=True))
    study = proposed(*rows, two_goals=True)
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
    study = proposed((outside[0], 0.9), (member, 0.5), (outside[1], 0.6), (member, 0.5), two_goals=True)
    best = confirmed(study, 2)
    assert [row["trial"] for row in best["front"]] == [row["trial"] for row in best["finalists"]] == [1]


def test_a_front_has_what_nothing_dominates() -> None:
    """Of points on a grid: better in one goal and no worse in the other dominates; equal points do not."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        points = [SimpleNamespace(values=[float(score), float(cost)]) for score, cost in rng.integers(0, 5, (12, 2))]

        def dominated(score: float, cost: float, points: list[SimpleNamespace] = points) -> bool:
            others = [point.values for point in points]
            return any((s > score and c <= cost) or (s >= score and c < cost) for s, c in others)

        assert front(points) == [point for point in points if not dominated(*point.values)]


@pytest.mark.parametrize(
    "origin",
    (
        *("uniform slice", "global importance", "fewer layers", "winner so far", "winner with base graphs"),
        *("MILP allocation", "MILP allocation 2", "MILP allocation 3"),
    ),
)
def test_baselines_have_these_names_in_studies(origin: str) -> None:
    a, b, c = inside(3)
    study = study_of((a, origin, 0.5), (b, "random", 0.8), (c, BASE_MODEL, 0.9))
    assert [trial.number for trial in finalists(study, 1)] == [2, 0]


def test_confirmations_are_those_asked_for() -> None:
    a, b, c = inside(3)
    study = study_of()
    for architecture, seed, score in ((a, 2, 0.2), (a, 1, 0.1), (a, 7, 0.7), (b, 1, 0.4), (c, 1, 0.5)):
        ledger.enqueue(study, SPACE, architecture, "stage-1 trial 0", seed)
        ledger.complete(study, ledger.ask(study, SPACE, "confirmation")[0].number, score, {})
    functions = [attribute(study.trials[number], ledger.FUNCTION) for number in (0, 3)]
    found = confirmations(study, [*functions, "none of these"], [1, 2])
    scores = [[(seed, result.score) for seed, result in of_seeds.items()] for of_seeds in found.values()]
    assert list(found) == [*functions, "none of these"] and scores == [[(1, 0.1), (2, 0.2)], [(1, 0.4)], []]
