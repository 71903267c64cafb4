"""What a stage varies, spends and hands on; folders of studies."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from statistics import mean

import optuna
import pytest
from optuna.trial import FrozenTrial

from nas import ledger
from nas.config import ConfigError, load_config
from nas.prepare import Workspace
from nas.stages import Folder, finalists, globally_important, hand_on, largest_uniform, stage_1_space
from search_spaces import Architecture, Base, Genes, Space, SpaceError, cost
from search_spaces.graph import GELU
from tests.nas.house import House

BASE = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)
DEMO = load_config("demo")
TABLE = {
    "space.stacks": [1, 2],
    "space.expansions": ["1/4", "1/2", "1"],
    "space.uniform": "1/2",
    "space.slack": 0.3,
    "space.edit_rate": 0.1,
}


def box(**changes: object) -> Space:
    config = load_config("demo", TABLE | {f"space.{key}": value for key, value in changes.items()})
    return stage_1_space(config, BASE, GELU, labels=4)


def test_the_box_reaches_from_slack_below_up_to_the_uniform_slice() -> None:
    space = box()
    uniform = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 4)
    smallest = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 4)), 4)
    assert space.max_params == uniform
    assert space.min_params == uniform - int(0.3 * (uniform - smallest))
    assert space.labels == 4
    assert box(max_params=uniform - 100).max_params == uniform - 100
    assert box(min_params=uniform - 5).min_params == uniform - 5


def test_a_limit_above_everything_is_no_limit() -> None:
    space = box(max_params="1G")
    largest = Architecture.uniform(BASE, stack=2)
    assert space.min_params < cost.params(largest, 4)
    assert space.size_count() > 0


@pytest.mark.parametrize("changes", [{"max_params": 10}, {"min_params": "1G", "max_params": "2G"}, {"stacks": [1, 1]}])
def test_boxes_that_nothing_fits(changes: dict[str, object]) -> None:
    with pytest.raises(SpaceError):
        box(**changes)


@pytest.mark.parametrize("spare", [0, 1, 100, 1000, 3000, 10**9])
def test_the_largest_uniform_slice_is_the_largest(spare: int) -> None:
    least = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 4)), 4)
    space = replace(box(min_params=1, max_params=10**9), max_params=least + spare)
    fits = [
        inner
        for inner in range(1, BASE.inner + 1)
        if cost.params(Architecture.uniform(BASE, expansion=Fraction(inner, BASE.inner)), 4) <= space.max_params
    ]
    found = largest_uniform(space, GELU)
    assert found == Architecture.uniform(BASE, expansion=Fraction(max(fits), BASE.inner))


def test_global_importance_keeps_the_most_important_neurons(house: House, workspace: Workspace) -> None:
    base, graph = workspace.base()
    space = stage_1_space(house.config, base, graph, workspace.labels)
    found = globally_important(space, graph, workspace)
    uniform = largest_uniform(space, graph)
    assert cost.params(found, workspace.labels) == cost.params(uniform, workspace.labels) == space.max_params
    assert {genes.stack for genes in found.layers} == {1}
    assert {genes.graph for genes in found.layers} == {graph}
    # No other division of as many neurons over two layers keeps more importance.
    inner = [genes.inner(base) for genes in found.layers]
    worth = [[0.0, *scores.cumsum(0).tolist()] for scores in workspace.importance()]
    kept = sum(layer[size] for layer, size in zip(worth, inner, strict=True))
    total = sum(inner)
    choices = [(a, total - a) for a in range(4, base.inner + 1) if 4 <= total - a <= base.inner]
    assert kept == pytest.approx(max(worth[0][a] + worth[1][b] for a, b in choices))


def study_of(*rows: tuple[Architecture, float | None], origin: str = "random") -> optuna.Study:
    """A study in memory with these scores; None is a failure."""
    study = optuna.create_study(direction="maximize")
    for architecture, score in rows:
        ledger.enqueue(study, architecture, origin)
        trial, _ = ledger.ask(study, box(), origin, labels=4)
        if score is None:
            ledger.fail(study, trial.number, "diverged")
        else:
            ledger.complete(study, trial.number, score, {"standard_error": 0.01})
    return study


def inside(count: int) -> list[Architecture]:
    space = box()
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


def handed_on(folder: Path, ranked: list[FrozenTrial], confirmation: optuna.Study) -> dict:
    winner = hand_on(Folder(folder), ranked, confirmation)
    best = json.loads((folder / "stage-1" / "best.json").read_text())
    assert Architecture.from_json(best["winner"]["architecture"]) == winner
    assert Architecture.load(folder / "architecture.json") == winner
    assert best["winner"] in best["finalists"]
    return best


def test_the_best_confirmed_mean_wins(tmp_path: Path) -> None:
    a, b, c = inside(3)
    ranked = finalists(study_of((a, 0.9), (b, 0.8), (c, 0.7)), 3)
    confirmation = study_of((a, 0.60), (b, 0.75), (c, 0.74), (a, 0.70), (b, 0.71), (c, None))
    best = handed_on(tmp_path, ranked, confirmation)
    assert best["winner"]["trial"] == 2
    assert [row["confirmed_scores"] for row in best["finalists"]] == [[0.60, 0.70], [0.75, 0.71], [0.74]]
    assert [row["confirmed_mean"] for row in best["finalists"]] == [mean([0.60, 0.70]), mean([0.75, 0.71]), 0.74]
    assert best["finalists"][1]["confirmed_deviation"] == pytest.approx(0.04 / 2**0.5)
    assert best["finalists"][2]["confirmed_deviation"] is None


def test_without_confirmation_the_best_score_wins(tmp_path: Path) -> None:
    a, b = inside(2)
    ranked = finalists(study_of((a, 0.8), (b, 0.9)), 3)
    best = handed_on(tmp_path, ranked, study_of())
    assert best["winner"]["trial"] == 1
    assert best["winner"]["confirmed_mean"] is None


def test_a_failed_confirmation_never_wins_over_a_confirmed_one(tmp_path: Path) -> None:
    a, b = inside(2)
    ranked = finalists(study_of((a, 0.9), (b, 0.8)), 3)
    best = handed_on(tmp_path, ranked, study_of((a, None), (b, 0.6)))
    assert best["winner"]["trial"] == 1


def test_folders(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out" / "s")
    with pytest.raises(ConfigError, match="nothing to resume"):
        folder.check(DEMO, resume=True)
    folder.check(DEMO, resume=False)
    assert not folder.path.exists()
    folder.create(DEMO)
    assert load_config(str(folder.config)) == DEMO
    folder.check(DEMO, resume=True)
    with pytest.raises(ConfigError, match="holds this study already: go on with --resume"):
        folder.check(DEMO, resume=False)
    changed = load_config("demo", {"space.stacks": [1, 2, 3], "stage1.trials": 7})
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"configuration \(space.stacks is \[1, 2\] there and \[1, 2, 3\]"):
            folder.check(changed, resume=resume)
    folder.config.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"config\.toml: is not UTF-8"):
        folder.check(DEMO, resume=True)


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(ConfigError, match="is not a study's folder"):
        Folder(tmp_path / "photos").check(DEMO, resume=False)
    with pytest.raises(ConfigError, match="is not a study's folder"):
        Folder(tmp_path / "photos" / "cat.jpg").check(DEMO, resume=False)
    with pytest.raises(ConfigError, match=r"cat.jpg/s: .*[Nn]ot a directory"):
        Folder(tmp_path / "photos" / "cat.jpg" / "s").create(DEMO)
