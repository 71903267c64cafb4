"""The goal to keep a fraction of the teacher's score: what is kept, the search for a budget, and the command."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from distill.cli import USER_ERROR
from distill.tasks.metrics import CLASS_ACCURACY, CLASS_F1
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.config.values import parse_latency
from nas.planning.finalists import Confirmation
from nas.planning.keep import UNBOUNDED, FractionKept, fraction_kept, ladder, last_passing, with_budget
from nas.search.command import main
from nas.study import ledger
from search_spaces import GELU, Architecture, cost
from tests.nas.tiny_study import TinyStudy, trials_of
from tests.tiny import BASE

TEACHER = np.array([1, 1, 1, 1, 0] * 40, float)


def kept(*students: np.ndarray, wanted: float) -> FractionKept:
    of_seeds = {seed: Confirmation(0.8, student) for seed, student in enumerate(students)}
    found = fraction_kept(CLASS_ACCURACY, TEACHER, of_seeds, wanted)
    assert found is not None
    return found


def test_identical_contributions_keep_everything() -> None:
    found = kept(TEACHER, wanted=0.99)
    assert (found.fraction, found.standard_error, found.confidence) == (1, 0, 1)
    assert kept(TEACHER, wanted=1.0).confidence == 1
    assert str(found) == "100.0% ± 0.0%"


def test_the_confidence_is_that_of_the_paired_difference() -> None:
    """Eight examples are lost and two won: the fraction is (160 - 6) / 160."""
    student = TEACHER.copy()
    student[np.flatnonzero(TEACHER)[:8]] = 0
    student[np.flatnonzero(TEACHER == 0)[:2]] = 1
    found = kept(student, wanted=0.97)
    assert found.fraction == pytest.approx(154 / 160)
    ratio = student - 154 / 160 * TEACHER
    assert found.standard_error == pytest.approx(ratio.std() / np.sqrt(200) / 0.8, rel=1e-6)
    margin = student - 0.97 * TEACHER
    assert found.confidence == pytest.approx(norm.cdf(margin.mean() / (margin.std() / np.sqrt(200))))
    assert 0.3 < found.confidence < 0.5  # the fraction is below 0.97
    assert kept(student, wanted=found.fraction).confidence == pytest.approx(0.5)
    two = kept(student, TEACHER, wanted=0.97)
    assert two.fraction == pytest.approx(157 / 160) and two.confidence > found.confidence


def test_a_score_that_has_no_fraction() -> None:
    with pytest.raises(ConfigError, match=r"the teacher's score is 0\.0000, of which no fraction can be kept;"):
        fraction_kept(CLASS_F1, np.zeros((5, 3)), {}, 0.9)


def test_confirmations_without_results_keep_nothing() -> None:
    for nothing in ({}, {1: Confirmation(0.7)}):
        assert fraction_kept(CLASS_ACCURACY, TEACHER, nothing, 0.9) is None


def test_the_ladder_goes_from_the_base_model_to_the_smallest() -> None:
    budgets = ladder(100, 1100, 150)
    assert budgets[0] == 1100 and budgets[2] == 600 and budgets[-1] >= 150
    fractions = [(later - 100) / (earlier - 100) for earlier, later in pairwise(budgets)]
    assert fractions == pytest.approx([0.5**0.5] * len(fractions), rel=0.05)
    assert ladder(100, 1100, 1100) == [1100]
    assert ladder(100, 1100, 100)[-1] == 101  # where nothing is left for FFNs, it ends


@pytest.mark.parametrize("last", [None, 0, 3, 9])
def test_bisection_finds_the_last_that_passes(last: int | None) -> None:
    asked = []

    def passes(number: int) -> bool:
        asked.append(number)
        return last is not None and number <= last

    assert last_passing(10, passes) == last
    assert len(asked) == len(set(asked)) <= 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"keep.fraction": "101%"},
            "keep.fraction: must be a fraction above 0 and at most 1, such as 99% or 0.99, not '101%'",
        ),
        ({"keep.fraction": 0}, "keep.fraction: must be a fraction above 0 and at most 1, such as 99% or 0.99, not 0"),
        ({"keep.fraction": 0.9, "keep.cost": "energy"}, "keep.cost: Input should be 'params', 'macs' or 'latency'"),
        (
            {"keep.fraction": 0.9, "keep.cost": "params", "space.max_params": "1M"},
            "keep finds the smallest space.max_params that is enough",
        ),
        ({"keep.fraction": 0.9, "space.min_params": 1000}, "keep finds the budget: leave out space.min_params"),
        ({"keep.fraction": 0.9, "stage1.confirm_seeds": 0}, "set stage1.confirm_seeds to at least 1"),
    ],
)
def test_goals_that_no_search_can_have(changes: dict[str, Any], words: str, tiny_study: TinyStudy) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(str(tiny_study.preset), changes)
    assert words in str(error.value)


@pytest.mark.parametrize("maximum", [1, 8604, 12_345_678, UNBOUNDED])
def test_budgets_are_limits_that_a_configuration_can_have(maximum: int, tiny_study: TinyStudy) -> None:
    for name in ("params", "macs", "latency"):
        config = load_config(str(tiny_study.preset), {"keep.fraction": 0.9, "keep.cost": name})
        space = with_budget(config, BASE, GELU, 3, cost.CLASSIFIER, maximum, 0.5).space
        limit = getattr(space, f"max_{name}")
        assert (parse_latency(limit).value if name == "latency" else limit) == maximum
        assert space.uniform is None and space.slack == 0.5
        # The base model's parameters bound what has no bound.
        whole = cost.params(Architecture.uniform(BASE), 3)
        assert space.max_params == (maximum if name == "params" else whole)
        widest = with_budget(config, BASE, GELU, 3, cost.CLASSIFIER, None, 0.5).space
        assert widest.max_params == whole and widest.max_macs is widest.max_latency is None
    bounded = load_config(str(tiny_study.preset), {"keep.fraction": 0.9, "keep.cost": "macs", "space.max_params": 9000})
    assert with_budget(bounded, BASE, GELU, 3, cost.CLASSIFIER, maximum, 0.5).space.max_params == 9000


def test_options_that_make_no_goal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["--stage", "1", "--out", str(tmp_path)]
    assert main([*command, "--keep", "much"]) == USER_ERROR
    assert (
        "--keep: must be a fraction above 0 and at most 1, such as 99% or 0.99, not 'much'" in capsys.readouterr().err
    )
    assert main([*command, "--keep", "99%", "--goals", "score,beauty"]) == USER_ERROR
    assert "with --keep, give score,params; score,macs; or score,latency" in capsys.readouterr().err
    assert main([*command, "--keep", "99%", "--goals", "score,params", "--max-params", "12M"]) == USER_ERROR
    assert "keep finds the smallest space.max_params" in capsys.readouterr().err


@pytest.fixture(scope="module")
def kept_study(shared_study: TinyStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search that keeps nine tenths of the score."""
    out = tmp_path_factory.mktemp("kept")
    goals = ("--goals", "score,params", "--keep", "90%")
    result = shared_study.run(*shared_study.search(out, "--study", "s", *goals, "--workers", "1"))
    assert (result.returncode, result.stderr) == (0, "")
    assert (
        "budget: " in result.stdout
        and " parameters\n" in result.stdout
        and "at least 90.0% with confidence" in result.stdout
    )
    return out / "s"


@pytest.mark.slow
def test_a_search_finds_the_budget(kept_study: Path) -> None:
    found = json.loads((kept_study / "budget.json").read_text())
    assert found["cost"] == "params"
    enough = [step["maximum"] for step in found["tried"] if step.get("share", 0) >= 0.9]
    too_few = [step["maximum"] for step in found["tried"] if step.get("share", 0) < 0.9]
    assert found["maximum"] == min(enough) and all(maximum < found["maximum"] for maximum in too_few)
    best = json.loads((kept_study / "stage-1" / "best.json").read_text())
    winner = Architecture.from_json(best["winner"]["architecture"])
    assert cost.params(winner, 2) <= found["maximum"]
    assert best["winner"]["kept"]["share"] >= min(
        step["share"] for step in found["tried"] if step.get("share", 0) >= 0.9
    )
    for trial in trials_of(kept_study):
        assert trial.user_attrs[ledger.WITHIN_BUDGET] == (trial.user_attrs["params"] <= found["maximum"])


@pytest.mark.slow
def test_later_stages_keep_the_budget(kept_study: Path, shared_study: TinyStudy) -> None:
    before = (kept_study / "budget.json").read_text()
    command = ("-m", "nas.search", "--study", "s", "--out", kept_study.parent, "--workers", "1", "--stage", "2")
    result = shared_study.run(*command)
    assert (result.returncode, result.stderr) == (0, "")
    assert (kept_study / "budget.json").read_text() == before
    maximum = json.loads(before)["maximum"]
    for trial in trials_of(kept_study, "stage-2"):
        assert trial.user_attrs["params"] <= maximum


@pytest.mark.slow
@pytest.mark.parametrize("name", ["macs", "latency"])
def test_the_budget_of_other_costs(name: str, shared_study: TinyStudy, tmp_path: Path) -> None:
    goals = ("--goals", f"score,{name}", "--keep", "50%", "--workers", "1", "--study", "s")
    result = shared_study.run(*shared_study.search(tmp_path, *goals))
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads((tmp_path / "s" / "budget.json").read_text())
    assert found["cost"] == name
    unit = {"macs": "MACs", "latency": "ms"}[name]
    assert re.search(rf"^budget: [\d,.]+ {unit}$", result.stdout, re.MULTILINE)
    best = json.loads((tmp_path / "s" / "stage-1" / "best.json").read_text())
    winner = Architecture.from_json(best["winner"]["architecture"])
    if name == "macs":
        assert cost.macs(winner, num_labels=2) <= found["maximum"]
    assert best["winner"]["kept"]["share"] >= 0.5


@pytest.mark.slow
def test_more_than_the_largest_student_keeps(shared_study: TinyStudy, tmp_path: Path) -> None:
    """Two steps at a learning rate that destroys the student."""
    recipe = "[candidate]\nsteps = {}\nbatch_size = 8\nlearning_rate = {}"
    destroying = shared_study.variant(tmp_path / "destroying.toml", (recipe.format(6, "1e-3"), recipe.format(2, "3.0")))
    search = shared_study.search(tmp_path / "out", "--keep", "100%", "--workers", "1", preset=destroying)
    result = shared_study.run(*search)
    assert result.returncode == USER_ERROR
    assert "not even the largest student keeps 100.0% of the teacher's score; ask for less" in result.stderr
