"""Searches that are cut short, and workers that are lost."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from ray.exceptions import ActorDiedError, RayTaskError

from nas import ledger
from nas.prepare import Workspace
from nas.runner import Recorder
from nas.samplers import SAMPLERS
from nas.stages import globally_important, largest_uniform, stage_1_space
from search_spaces import Architecture
from tests.nas.house import House, descendants, states, trials_of, wait

TRIALS = 30
LOST = "the worker was lost"


def expected(house: House, workspace: Workspace) -> list[Architecture]:
    """What an uninterrupted search evaluates: the baselines, then the sampler's draws."""
    base, graph = workspace.base()
    space = stage_1_space(house.config, base, graph, workspace.labels)
    study = optuna.create_study(direction="maximize", sampler=SAMPLERS["random"](space, house.config.seed))
    for baseline in (
        Architecture.uniform(base, graph=graph),
        largest_uniform(space, graph),
        globally_important(space, graph, workspace),
    ):
        ledger.enqueue(study, baseline, "baseline")
    return [ledger.ask(study, space, "random", workspace.labels)[1] for _ in range(TRIALS)]


@dataclass(frozen=True)
class Ended:
    """What is read of Tune's trials, which exist in a Ray session alone."""

    config: dict[str, int]
    error_file: str


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ActorDiedError(), LOST),
        (
            RayTaskError("train", "Traceback:\n  line 3\nRuntimeError: no room", RuntimeError("no room")),
            "error: RuntimeError: no room",
        ),
    ],
)
def test_errors_are_failures_with_a_reason(error: Exception, reason: str, tmp_path: Path) -> None:
    (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred at noon)\n{error}\n", encoding="utf-8")
    trial: Any = Ended({"number": 0}, str(tmp_path / "error.txt"))
    study = optuna.create_study(direction="maximize")
    study.ask()
    seen: list[int] = []
    recorder = Recorder(study, lambda study, number: seen.append(number))
    recorder.on_trial_error(iteration=1, trials=[trial], trial=trial)
    # Tune may say it twice, and a worker may be lost after its last report.
    recorder.on_trial_error(iteration=1, trials=[trial], trial=trial)
    assert seen == [0]
    assert study.trials[0].state == TrialState.FAIL
    assert study.trials[0].user_attrs[ledger.FAILURE] == reason


def test_a_search_survives_everything(searched: Path, house: House, workspace: Workspace, tmp_path: Path) -> None:
    """Interrupted by Ctrl-C, gone on with; a worker lost, then the driver killed; gone on with to the end."""
    folder = tmp_path / "results" / "tiny"
    preset = house.variant(tmp_path / "tiny.toml", ("confirm_seeds = 2", "confirm_seeds = 0"))
    command = house.search(tmp_path / "results", "--trials", TRIALS, preset=preset)

    with house.running(*command) as process:
        wait(process, lambda: states(folder)["COMPLETE"] >= 3)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert error == "nas.search: interrupted; the same command with --resume goes on\n"
    first = trials_of(folder)
    assert len(ended(first)) < TRIALS

    with house.running(*command, "--resume") as process:
        wait(process, lambda: states(folder)["COMPLETE"] > len(ended(first)) + 1)
        wait(process, lambda: lose_a_worker(process.pid, folder))
        wait(process, lambda: any(trial.user_attrs.get(ledger.FAILURE) == LOST for trial in trials_of(folder)))
        done = states(folder)["COMPLETE"]
        wait(process, lambda: states(folder)["COMPLETE"] > done and states(folder)["RUNNING"] > 0)
        process.kill()
        process.communicate(timeout=120)
    second = trials_of(folder)
    assert len(ended(second)) < TRIALS

    result = house.run(*command, "--resume")
    assert result.returncode == 0, result.stderr
    trials = trials_of(folder)
    finished = ended(trials)
    lost = [trial for trial in finished if trial.state == TrialState.FAIL]
    assert len(finished) == TRIALS
    assert [trial.user_attrs[ledger.FAILURE] for trial in lost] == [LOST]
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.FAIL}
    # The same trials as an unkilled run, none lost and none twice.
    seen = [ledger.architecture_of(trial) for trial in finished]
    assert sorted(map(repr, seen)) == sorted(map(repr, expected(house, workspace)))
    # What had ended stayed as it was.
    for earlier in (first, second):
        for trial in ended(earlier):
            assert trials[trial.number] == trial
    for trial in trials:
        if trial.user_attrs.get(ledger.FAILURE) == ledger.INTERRUPTED:
            assert trial.value is None
    # And an architecture's score does not depend on when it ran.
    scores = {ledger.architecture_of(trial): trial.value for trial in trials_of(searched)}
    again = {ledger.architecture_of(trial): trial.value for trial in finished if trial.value is not None}
    shared = scores.keys() & again.keys()
    assert len(shared) >= 5
    assert {architecture: scores[architecture] for architecture in shared} == {
        architecture: again[architecture] for architecture in shared
    }


def lose_a_worker(driver: int, folder: Path) -> bool:
    """Kill one of two workers, if both are in the middle of a trial."""
    workers = [pid for pid, title in descendants(driver).items() if title.startswith("ray::ImplicitFunc")]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)  # what they had reported is written down
    both = len(workers) == 2 and states(folder)["RUNNING"] == 2
    if both:
        os.kill(workers[0], signal.SIGKILL)
    for pid in workers:
        os.kill(pid, signal.SIGCONT)
    return both


def ended(trials: list[optuna.trial.FrozenTrial]) -> list[optuna.trial.FrozenTrial]:
    return [
        trial
        for trial in trials
        if trial.state.is_finished() and trial.user_attrs.get(ledger.FAILURE) != ledger.INTERRUPTED
    ]
