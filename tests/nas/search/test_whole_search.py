"""Stages 1, 2 and 3 in sequence, a search with two goals, and a search with a latency limit."""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial, TrialState

from distill.cli import USER_ERROR
from nas.config.load import load_config
from nas.planning.finalists import ALLOCATED, FEWER_LAYERS, GLOBAL, UNIFORM
from nas.study import ledger
from nas.study.attributes import attribute
from nas.study.description import formula
from search_spaces import FFN, Architecture, Attention, Layer, cost
from tests import requirements
from tests.nas.tiny_study import TinyStudy, trials_of

pytestmark = pytest.mark.slow

# The tests of goals and limits need no confirmed winner; the study of the fixture `refined` has them.
UNCONFIRMED = ("confirm_seeds = 2", "confirm_seeds = 0")
# What a search says if another process took so much time that its measurements contradict each other.
TOO_BUSY = "latency: the measured latencies do not grow with the size of the models"


def winner(folder: Path, stage: str) -> Architecture:
    best = json.loads((folder / f"stage-{stage}" / "best.json").read_text())
    return Architecture.from_json(best["winner"]["architecture"])


def without_duplicates(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in trials if ledger.DUPLICATE_OF not in trial.user_attrs]


@pytest.fixture(scope="module")
def refined(searched: Path, shared_study: TinyStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study with a finished stage 1 and with stages 2 and 3, each run by its own command."""
    out = tmp_path_factory.mktemp("refined")
    shutil.copytree(searched, out / "s")
    command = ("-m", "nas.search", "--study", "s", "--out", out, "--workers", "2")
    # Without --preset the configuration of the study applies.
    result = shared_study.run(*command, "--stage", "2")
    assert (result.returncode, result.stderr) == (0, "")
    assert "4/4" in result.stdout
    result = shared_study.run(*command, "--stage", "3", "--sandwich", "--trials", "7")
    assert (result.returncode, result.stderr) == (0, "")
    assert "7/7" in result.stdout
    return out / "s"


def test_no_winner_was_confirmed_to_be_worse_than_the_one_before(refined: Path) -> None:
    rows = {stage: json.loads((refined / f"stage-{stage}" / "best.json").read_text()) for stage in "123"}
    means = [rows[stage]["winner"]["confirmed_mean"] for stage in "123"]
    assert means == sorted(means)
    assert Architecture.load(refined / "architecture.json") == winner(refined, "3")
    stored = load_config(str(refined / "config.toml"))
    assert (stored.stage3.trials, stored.one_shot.sandwich, stored.stage2.trials) == (7, True, 4)
    # All stages share the study of confirmations. An architecture is confirmed once, and later gets the same scores.
    trials = trials_of(refined, "confirmation")
    trained = [
        (attribute(trial, ledger.FUNCTION), trial.user_attrs[ledger.SEED]) for trial in without_duplicates(trials)
    ]
    assert len(set(trained)) == len(trained)
    assert len(without_duplicates(trials)) < len(trials)
    for trial in trials:
        if ledger.DUPLICATE_OF in trial.user_attrs:
            twin = trials[trial.user_attrs[ledger.DUPLICATE_OF]]
            assert (trial.values, trial.state) == (twin.values, TrialState.COMPLETE)


def test_two_goals_give_a_front(tiny_study: TinyStudy, tmp_path: Path) -> None:
    preset = tiny_study.variant(tmp_path / "tiny.toml", UNCONFIRMED)
    result = tiny_study.run(*tiny_study.search(tmp_path, "--goals", "score,macs", "--trials", "9", preset=preset))
    assert (result.returncode, result.stderr) == (0, "")
    trials = trials_of(tmp_path / "tiny")
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            assert trial.values[1] == trial.user_attrs["macs"]
            architecture = ledger.architecture_of(trial)
            assert trial.user_attrs["macs"] == cost.macs(architecture, num_labels=3)
    best = json.loads((tmp_path / "tiny" / "stage-1" / "best.json").read_text())
    inside = [trial for trial in trials if trial.values and trial.user_attrs[ledger.WITHIN_BUDGET]]
    for row in best["front"]:
        better = [t for t in inside if t.values[0] >= row["score"] and t.values[1] <= row["macs"]]
        assert {(trial.values[0], trial.values[1]) for trial in better} == {(row["score"], row["macs"])}
    assert best["winner"]["trial"] in {row["trial"] for row in best["front"]}


def test_a_latency_limit_is_kept_and_the_winner_is_measured(tiny_study: TinyStudy, tmp_path: Path) -> None:
    preset = tiny_study.variant(tmp_path / "tiny.toml", UNCONFIRMED)
    result = tiny_study.run(*tiny_study.search(tmp_path, "--max-latency", "1.3x", "--trials", "5", preset=preset))
    if result.returncode == USER_ERROR and TOO_BUSY in result.stderr:
        requirements.missing(result.stderr)
    assert (result.returncode, result.stderr) == (0, "")
    trials = trials_of(tmp_path / "tiny")
    limit = max(trial.user_attrs["latency"] for trial in trials if trial.user_attrs[ledger.WITHIN_BUDGET])
    assert all(isinstance(trial.user_attrs["latency"], int) for trial in trials)
    best = json.loads((tmp_path / "tiny" / "stage-1" / "best.json").read_text())
    for row in best["finalists"]:
        assert 0 < row["latency_us"] <= limit
        measured = row["trial"] == best["winner"]["trial"]
        assert row.get("latency_measured_us", 0) > 0 if measured else "latency_measured_us" not in row
    assert result.stdout.count("measured whole") == 1


def test_heads_and_layers_from_the_search_to_the_checkpoint(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """All stages on untrained candidates, and the final training of a winner with few heads and a layer left out.

    No choice of heads is that of the whole layers of the baseline with fewer layers.
    """
    changes = [("stacks = [1, 2]", "stacks = [0, 1]\nheads = [0, 1, 2]"), ('uniform = "1/2"', "max_params = 12_000")]
    changes += [
        ("[candidate]", '[objective]\nattention = 0.0\n\n[supernet]\ninheritance = "compensated"\n\n[candidate]')
    ]
    for stage in "123":
        changes.append((f"[stage{stage}]\n", f'[stage{stage}]\nevaluation = "untrained"\n'))
    preset = tiny_study.variant(tmp_path / "tiny.toml", *changes, ("trials = 6", "trials = 12"))
    result = tiny_study.run(*tiny_study.search(tmp_path, "--stage", "all", preset=preset))
    assert (result.returncode, result.stderr) == (0, "")
    folder = tmp_path / "tiny"
    for stage in "123":
        trials = trials_of(folder, f"stage-{stage}")
        assert not [trial for trial in trials if trial.state == TrialState.FAIL]
        assert stage == "2" or any(" head" in formula(ledger.architecture_of(trial)) for trial in trials)
    origins = [trial.user_attrs[ledger.ORIGIN] for trial in trials_of(folder)]
    assert {UNIFORM, GLOBAL, FEWER_LAYERS, *ALLOCATED} <= {*origins}
    assert cost.params(winner(folder, "3"), 3) <= 12_000
    start = Architecture.load(folder / "architecture.json")
    layers = (Layer(Attention(0), FFN(stack=0)), Layer(Attention(1), FFN(start.ffns[0].graph, 1, Fraction(1, 4))))
    small = tmp_path / "small.json"
    Architecture(start.base, layers).save(small)
    arguments = ("--preset", folder / "config.toml", "--out", tmp_path / "final", "--skip-base")
    result = tiny_study.run("train_final.py", small, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    student = json.loads((tmp_path / "final" / "metrics.json").read_text())["models"]["student"]
    assert student["params"] == cost.params(Architecture.load(small), 3)
