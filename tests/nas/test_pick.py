"""`python -m nas.pick`: which trial is chosen, and the file of its architecture."""

import json
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest

from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.pick import main
from nas.preparation.workspace import Workspace
from nas.study import ledger
from nas.study.attributes import TEACHER, score_attribute
from nas.study.folder import Folder
from nas.study.names import existing_studies
from search_spaces import FFN, Architecture, Base, Space, cost
from search_spaces.graph import GELU
from tests.commands import Refused
from tests.nas.tiny_study import TinyStudy, trials_of

BASE = Base(depth=2, width=24, heads=4, inner=48, vocabulary=50, positions=20)
ARCHITECTURES = [
    Architecture.of_ffns(BASE, tuple(FFN(GELU, 1, Fraction(width, 48)) for width in widths))
    for widths in product((6, 12, 24, 48), repeat=2)
]
PARAMS = [cost.params(architecture, 2) for architecture in ARCHITECTURES]
SPACE = Space(
    BASE,
    {"stack": (1,), "expansion": tuple(Fraction(width, 48) for width in (6, 12, 24, 48))},
    min(PARAMS),
    max(PARAMS),
    0.1,
    num_labels=2,
)


def folder_of(
    path: Path, scores: dict[int, float], goals: tuple[str, ...], cost: str = "params", **attributes: object
) -> Path:
    """A study's folder whose stage 1 has trials of these architectures, by their numbers, with these scores, and with
    as many MACs as their numbers are below 100. The search kept a share at the lowest `cost`.
    """
    path.mkdir(exist_ok=True)
    folder = Folder(path / "s")
    folder.create(load_config("demo-ffn", {"keep.fraction": 0.9, "keep.cost": cost}))
    study = ledger.open_study(folder.storage, "s/stage-1", goals=goals)
    for key, value in attributes.items():
        study.set_user_attr(key, value)
    for number, score in scores.items():
        ledger.enqueue(study, SPACE, ARCHITECTURES[number], "random")
        trial, _ = ledger.ask(study, SPACE, "random")
        further = {"standard_error": 0.01, score_attribute("word_order"): score - 0.1, "macs": 100 - number}
        ledger.complete(study, trial.number, score, further)
    return folder.path


def picked(folder: Path, *options: str) -> Architecture:
    """The architecture that the command writes."""
    out = folder.parent / "out.json"
    assert main([str(folder), "--out", str(out), *options]) == 0
    return Architecture.load(out)


def test_the_knee(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Architectures 0, 5, 10 and 15 are ever larger; a small step up from 0 to 5 brings most of the score."""
    folder = folder_of(tmp_path, {0: 0.5, 5: 0.78, 10: 0.8, 15: 0.81, 14: 0.6}, ("score", "params"))
    assert picked(folder) == ARCHITECTURES[5]
    printed = capsys.readouterr().out
    assert "stage 1, trial 1 (random): the knee of a front of 4 trials" in printed
    assert "score 0.7800 ± 0.0100" in printed and f"{PARAMS[5]:,} parameters" in printed
    rows = [line.split() for line in printed.splitlines()]
    params = f"{cost.ffn_params(BASE, ARCHITECTURES[5].ffns[1]):,}"
    assert ["2", "1", "1/4", "12", params, "project(gelu(expand(x)))"] in rows


@pytest.mark.parametrize(
    ("scores", "expected"),
    [({5: 0.7}, 5), ({0: 0.6, 5: 0.7}, 5), ({0: 0.7, 5: 0.7}, 0), ({0: 0.6, 5: 0.7, 15: 0.8}, 5)],
)
def test_knees_of_short_fronts(scores: dict[int, float], expected: int, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, scores, ("score", "params"))
    assert picked(folder) == ARCHITECTURES[expected]


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, {0: 0.5, 1: 0.7}, ("score",))
    out = folder / "picked.json"
    assert main([str(folder), "--json", "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    layers = found.pop("layers")
    assert layers == ["1×6 project(gelu(expand(x)))", "1×12 project(gelu(expand(x)))"]
    assert found == {
        "stage": "1",
        "trial": 1,
        "why": "the best of 2 so far",
        "file": str(out),
        "origin": "random",
        "scores": {"score": 0.7},
        "standard_error": 0.01,
        "teacher": None,
        "confirmed": [],
        "costs": {"params": PARAMS[1], "macs": 99},
    }


def test_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    folder = folder_of(tmp_path, {0: 0.5, 1: 0.6, 5: 0.55, 10: 0.8}, ("score",))
    assert picked(folder) == ARCHITECTURES[10]
    assert "the best of 4 so far" in capsys.readouterr().out
    assert picked(folder, "--max-params", str(PARAMS[5])) == ARCHITECTURES[1]
    assert "the best of 3 within the limits" in capsys.readouterr().out
    assert picked(folder, "--max-macs", "99") == ARCHITECTURES[10]
    assert picked(folder, "--max-macs", "99", "--max-params", str(PARAMS[5])) == ARCHITECTURES[1]
    assert picked(folder, "--trial", "2") == ARCHITECTURES[5]
    assert f"--preset {folder / 'config.toml'}\n" in capsys.readouterr().out
    least, macs = ["--max-params", str(PARAMS[0])], ["--max-macs", "10"]
    for options, message in (
        (["--max-params", "1K"], f"no trial has at most 1,000 parameters; the least is {PARAMS[0]:,} parameters"),
        ([*least, *macs], "--max-macs: no trial within --max-params has at most 10 MACs"),
        (["--max-params", "1K", *macs], "--max-params: no trial has at most 1,000 parameters"),
        (["--max-latency", "3ms"], "--max-latency: the trials of this study have no latency"),
        (["--max-latency", "0.5x"], "give a time such as '12ms'"),
        (["--max-latency", "soon"], "--max-latency: a latency is"),
        (["--max-params", "few"], "--max-params: 'few' is not a number"),
        (["--trial", "4"], "has trials 0 to 3, not 4"),
        (["--trial", "1", *macs], "--trial names the trial: leave out --max-macs"),
    ):
        assert message in refused(main, folder, *options)
    assert not (folder / "picked.json").exists()


def test_keeping_a_share(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    """Fidelities are not scores: the share is of the task's metric, which here is lower by 0.1."""
    teacher = {"task": "word_order", "score": 0.8}
    folder = folder_of(tmp_path, {0: 0.7, 1: 0.86, 5: 0.85, 10: 0.9}, ("fidelity",), **{TEACHER: teacher})
    assert picked(folder, "--keep", "95%") == ARCHITECTURES[1]
    printed = capsys.readouterr().out
    assert "the lowest params of those that keep 95.0% of the teacher's score" in printed
    assert "fidelity 0.8600 ± 0.0100; score 0.7600; teacher 0.8000" in printed
    assert picked(folder, "--keep", "0.99") == ARCHITECTURES[10]
    message = refused(main, folder, "--keep", "100%", "--max-params", str(PARAMS[5]))
    kept = "keeps 100.0% of the teacher's score 0.8000; the best keeps"
    assert f"no trial within --max-params {kept} 95.0%" in message
    lower = folder_of(tmp_path / "lower", {0: 0.5}, ("fidelity",), **{TEACHER: teacher})
    assert f"no trial within its budget {kept} 50.0%" in refused(main, lower, "--keep", "100%")
    assert "--keep: must be a fraction above 0 and at most 1, such as 99%" in refused(main, folder, "--keep", "most")


@pytest.mark.parametrize(("name", "expected"), [("params", 1), ("macs", 10)])
def test_the_cost_that_the_search_minimised(name: str, expected: int, tmp_path: Path) -> None:
    """Of a search with --keep, which has one goal."""
    teacher = {"task": "t", "score": 0.8}
    folder = folder_of(tmp_path, {0: 0.5, 1: 0.8, 10: 0.8}, ("score",), name, **{TEACHER: teacher})
    assert picked(folder, "--keep", "99%") == ARCHITECTURES[expected]


def test_teachers_without_a_score(tmp_path: Path, refused: Refused) -> None:
    """Such as Matthews's correlation of a teacher that learned nothing."""
    folder = folder_of(tmp_path, {0: 0.5}, ("score",), **{TEACHER: {"task": "t", "score": 0.0}})
    assert picked(folder) == ARCHITECTURES[0]
    message = "the teacher's score is 0.0000, of which no fraction can be kept"
    assert message in refused(main, folder, "--keep", "90%")


def test_what_cannot_be_picked(tmp_path: Path, refused: Refused) -> None:
    assert "is not a study's folder" in refused(main, tmp_path)
    folder = folder_of(tmp_path, {}, ("score",))
    assert "has no trial with a score yet" in refused(main, folder)
    assert "has the stages '1', not '2'" in refused(main, folder, "--stage", "2")
    assert "stage-1 has no trials yet" in refused(main, folder, "--stage", "1", "--trial", "0")
    study = ledger.open_study(Folder(folder).storage, "s/stage-1")
    for number in (0, 5):
        ledger.enqueue(study, SPACE, ARCHITECTURES[number], "random")
        ledger.ask(study, SPACE, "random")
    ledger.fail(study, 0, "diverged: the loss is not finite")
    ledger.report(study, 1, 3, 0.4)
    ledger.prune(study, 1, 3, {})
    for options, message in (
        (["--trial", "0"], "has no score (failed: diverged: the loss"),
        (["--trial", "1"], "no score (pruned: among the lowest scores"),
        ([], "stage-1 has no trial with a score within its budget yet"),
    ):
        assert message in refused(main, folder, "--stage", "1", *options)
    other = folder_of(tmp_path / "other", {0: 0.5}, ("score",))
    assert "--out: " in refused(main, other, "--out", folder / "study.db" / "a.json")
    (folder / "study.db").rename(folder / "renamed.db")
    ledger.open_study(Folder(folder).storage, "mine")
    assert "study.db: there is no study s/stage-1, nor of another stage" in refused(main, folder)
    (folder / "study.db").unlink()
    assert "has no study.db: if the study was searched with --storage" in refused(main, folder)


def test_a_finished_search(
    copied: Path, tiny_study: TinyStudy, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(copied)]) == 0
    printed = capsys.readouterr().out
    best = json.loads((copied / "stage-1" / "best.json").read_text())
    assert f"trial {best['winner']['trial']} (" in printed and ": the winner\n" in printed
    assert f"score after training with 2 fresh seeds {best['winner']['confirmed_mean']:.4f}" in printed
    assert printed.endswith(f"next: ffn-train-final {copied / 'picked.json'}\n")
    assert Architecture.load(copied / "picked.json") == Architecture.load(copied / "architecture.json")
    # The teacher's score is that of the teacher on the search split.
    study = existing_studies(Folder(copied))["stage-1"]
    evaluator = TrainedEvaluator(workspace, "cpu")
    assert study.user_attrs[TEACHER] == {"task": "library", "score": evaluator.score(evaluator.teacher()).value}
    # Without best.json, as after an interruption.
    (copied / "stage-1" / "best.json").unlink()
    scored = [trial for trial in trials_of(copied) if trial.user_attrs[ledger.WITHIN_BUDGET]]
    assert picked(copied) == ledger.architecture_of(max(scored, key=lambda trial: trial.values[0]))
