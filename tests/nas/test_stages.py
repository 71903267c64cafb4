"""What a stage varies, starts from and hands on."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import optuna
import pytest

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.preparation.workspace import Workspace
from nas.stages import (
    UNIFORM,
    WINNER,
    WINNER_WITH_BASE_GRAPHS,
    all_base_graphs,
    check_start,
    finalists,
    plan,
    start_of,
    summary,
)
from nas.study import ledger
from nas.study.description import Parameters
from nas.study.folder import Folder
from search_spaces import Architecture, Base, FFNGraph, Genes, Space, cost
from search_spaces.architecture import Experts
from search_spaces.graph import GELU
from search_spaces.spaces import GRAPHS, SIZES
from tests.nas.tiny_study import TinyStudy

BASE = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)
HALF = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 4)
SPACE = Space(BASE, (1, 2), (Fraction(1, 4), Fraction(1, 2), Fraction(1)), HALF - 1000, HALF, 0.1, labels=4)
DEMO = load_config("demo")


def study_of(*rows: tuple[Architecture, float | None], origin: str = "random") -> optuna.Study:
    """A study in memory with these scores; None is a failure."""
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
    """The summary of a study whose finalists, by their trials' numbers, got these confirming scores."""
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
    """The base model, better than all in its score, and a smaller one than the box allows."""
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


def test_plans(tiny_study: TinyStudy, workspace: Workspace) -> None:
    config = tiny_study.config
    base, graph = workspace.base()
    first = plan(config, workspace, "1", None, ())
    assert [origin for _, origin, _ in first.baselines] == ["base model", UNIFORM, "global importance"]
    assert (first.study, first.space.vary, first.one_shot) == ("stage-1", {GRAPHS, SIZES}, False)
    everything = plan(config, workspace, "single", None, ())
    assert everything.table.trials == config.stage1.trials + config.stage2.trials
    assert (everything.space, everything.study) == (first.space, "stage-single")

    relu = FFNGraph.parse("project(relu(expand(x)))")
    winner = Architecture(base, (Genes(relu, 2, Fraction(1, 8)), Genes(graph, 1, Fraction(1, 4))))
    second = plan(config, workspace, "2", winner, ())
    assert second.baselines == [(winner, WINNER, None), (all_base_graphs(winner, graph), WINNER_WITH_BASE_GRAPHS, None)]
    assert (second.space.vary, second.space.start, second.one_shot) == ({GRAPHS}, winner, False)
    third = plan(config, workspace, "3", winner, ())
    assert third.baselines == [(winner, WINNER, None)]
    assert (third.space.vary, third.space.start, third.one_shot) == ({SIZES}, winner, True)
    assert third.space.max_params == second.space.max_params == first.space.max_params


def test_what_a_stage_refines(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    a, b = inside(2)
    assert start_of(folder, "1", None) is start_of(folder, "single", None) is None
    with pytest.raises(ConfigError, match=r"refines the winner of stage 1, .*: run --stage 1 first, or give --from"):
        start_of(folder, "2", None)
    assert start_of(folder, "2", a) == a
    folder.stage("1").mkdir()
    folder.best("1").write_text(json.dumps({"winner": {"architecture": b.to_json()}}))
    assert start_of(folder, "2", None) == b
    with pytest.raises(ConfigError, match="stage 3 refines the winner of stage 2"):
        start_of(folder, "3", None)
    # A stage that has begun keeps its start.
    folder.begin("2", DEMO, a)
    assert start_of(folder, "2", None) == start_of(folder, "2", a) == a
    with pytest.raises(
        ConfigError, match=r"--from: stage 2 has already begun with another architecture, .*start.json; leave out"
    ):
        start_of(folder, "2", b)


def test_what_candidates_could_not_inherit_from(tiny_study: TinyStudy, workspace: Workspace) -> None:
    base, graph = workspace.base()
    check_start(None, tiny_study.config, base)
    check_start(Architecture.uniform(base, graph=graph, stack=2), tiny_study.config, base)
    with pytest.raises(ConfigError, match=r"a stack of 3 blocks, but the supernet only has 2: add 3 to space.stacks"):
        check_start(Architecture.uniform(base, graph=graph, stack=3), tiny_study.config, base)
    hashed = Architecture.uniform(base, graph=graph, expansion=Fraction(1, 4), experts=Experts(2, routing="hash"))
    check_start(hashed, tiny_study.config, base)
    timed = tiny_study.config.model_copy(
        update={"space": tiny_study.config.space.model_copy(update={"max_latency": "0.5x"})}
    )
    with pytest.raises(ConfigError, match=r"has experts \(2 hash, shared .*\) that are not in space.experts"):
        check_start(hashed, timed, base)
    other = replace(base, inner=base.inner + 1)
    with pytest.raises(ConfigError, match=r"the architecture to refine has the base .*; this study's is "):
        check_start(Architecture.uniform(other, graph=graph), tiny_study.config, base)
