"""Failures of trials, lost workers, pruning, and exhausted spaces."""

import errno
import random
import time
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import psutil
import pytest
import torch
from optuna.trial import TrialState
from ray import tune
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError
from ray.tune.schedulers import TrialScheduler

from nas.planning.stages import plan
from nas.preparation.workspace import Workspace
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.description import choices_of
from nas.study.storage import sqlite_url
from nas.workers import failures, runner
from nas.workers.cluster import Cluster, ray_session
from nas.workers.failures import is_out_of_memory
from nas.workers.runner import Proposals, Recorder, Rungs, run
from search_spaces import Architecture
from search_spaces.spaces import SIZES
from tests.nas.tiny_study import TIMEOUT, TinyStudy
from tests.search_spaces.small_spaces import of_genes


@dataclass(frozen=True)
class Ended:
    """The attributes of a Tune trial that the recorder reads; real ones only exist in a Ray session."""

    config: dict[str, int]
    error_file: str
    trial_id: str = "of-tune"


def fail_with(error: Exception, study: optuna.Study, number: int, folder: Path) -> list[int]:
    """Pass this error to a recorder; returns the trials that it reports as ended."""
    (folder / "error.txt").write_text(f"Failure # 1 (occurred at noon)\n{error}\n", encoding="utf-8")
    trial: Any = Ended({"number": number}, str(folder / "error.txt"))
    seen: list[int] = []
    recorder = Recorder(study, lambda study, number: seen.append(number))
    recorder.on_trial_error(iteration=1, trials=[trial], trial=trial)
    # Tune may say it twice, and a worker may be lost after its last report.
    recorder.on_trial_error(iteration=1, trials=[trial], trial=trial)
    return seen


@pytest.fixture
def study(tmp_path: Path) -> optuna.Study:
    return ledger.open_study(sqlite_url(tmp_path / "study.db"), "stage-1")


FAULT = RayTaskError("train", "Traceback:\n  line 3\nRuntimeError: no room", RuntimeError("no room"))


@pytest.mark.parametrize("error", [FAULT, ActorDiedError(FAULT)])
def test_a_fault_of_a_trial_is_its_failure(error: Exception, study: optuna.Study, tmp_path: Path) -> None:
    study.ask()
    assert fail_with(error, study, 0, tmp_path) == [0]
    assert study.trials[0].state == TrialState.FAIL
    assert study.trials[0].user_attrs == {ledger.FAILURE: "error: RuntimeError: no room"}


# As Ray 2.60 says it, up to a list of all processes.
LOW = OutOfMemoryError(
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2, ID: 1ab383fa) "
    "was 22.90GB used / 23.54GB limit (0.972812)\nOOM kill reason: Memory usage 24588692480B exceeded threshold\n\n"
    "Top 10 memory users: PID\tMEM(GB)\tCOMMAND\n20776\t1.23\tray::ImplicitFunc.train\nSet max_restarts to retry."
)


def test_a_worker_that_is_killed_for_memory_is_a_finding_at_once(study: optuna.Study, tmp_path: Path) -> None:
    """The trial is not repeated, because it would be killed again and might take others with it."""
    study.ask()
    assert fail_with(LOW, study, 0, tmp_path) == [0]
    assert study.trials[0].state == TrialState.FAIL
    assert study.trials[0].user_attrs == {
        ledger.FAILURE: "out of memory: 1 worker(s) were killed due to the node running low on memory. "
        "Memory on the node was 22.90GB used / 23.54GB limit (0.972812)"
    }


def test_a_worker_that_the_kernel_kills_for_memory_is_told_from_a_lost_one(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's own count; `tests/trust/test_memory.py` has it kill a worker."""
    counters = tmp_path / "vmstat"
    monkeypatch.setattr(failures, "KERNEL_COUNTERS", counters)
    (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred at noon)\n{ActorDiedError()}\n", encoding="utf-8")
    recorder = Recorder(study, lambda study, number: None)
    for number, count in enumerate(("oom_kill 0\n", "oom_kill 3\n", "")):
        study.enqueue_trial({})
        study.ask()
        counters.write_text(f"pgscan_kswapd 5\n{count}thp_fault_alloc 1\n")
        trial: Any = Ended({"number": number}, str(tmp_path / "error.txt"), f"{number}")
        recorder.on_trial_start(iteration=1, trials=[trial], trial=trial)
        if number == 1:
            counters.write_text("oom_kill 4\n")
        recorder.on_trial_error(iteration=1, trials=[trial], trial=trial)
        found = study.trials[number]
        killed = found.user_attrs.get(ledger.FAILURE) == "out of memory: the kernel killed the worker"
        assert (found.state, killed) == ((TrialState.FAIL, True) if number == 1 else (TrialState.WAITING, False))
        if found.state == TrialState.WAITING:
            study.ask()


def test_errors_of_memory() -> None:
    """PyTorch's CPU allocator raises a RuntimeError, like many other failures."""
    with pytest.raises(RuntimeError) as too_large:
        torch.empty(2**48)
    assert is_out_of_memory(too_large.value)
    with pytest.raises(RuntimeError) as mismatch:
        torch.zeros(2, 3) @ torch.zeros(2, 3)
    assert not is_out_of_memory(mismatch.value)
    assert is_out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert not is_out_of_memory(OSError(errno.ENOSPC, "No space left on device"))
    assert is_out_of_memory(MemoryError()) and is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))


def greedy(config: dict[str, Any], workspace: Workspace, device: str, rungs: tuple[Fraction, ...]) -> None:
    """Fills a sixth of the memory, which Ray must prevent."""
    tune.report({"step": 0, "score": 0.5})
    blocks = []
    for _ in range(psutil.virtual_memory().total // 6 // 2**26):
        blocks.append(b"x" * 2**26)
        time.sleep(0.1)
    time.sleep(TIMEOUT)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_without_tokens")
def test_a_candidate_without_memory_fails_at_once(
    tiny_study: TinyStudy, workspace: Workspace, study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{1 - memory.available / memory.total + 0.08:.3f}")
    first = plan(tiny_study.config, workspace, "1", None, ())
    ledger.enqueue_missing(study, first.space, first.baselines[:1])
    local, seen = Cluster(workers=1, device="cpu"), list[int]()
    with ray_session(local):
        run(study, first.space, workspace, local, evaluate=greedy, on_trial=lambda study, number: seen.append(number))
    assert [trial.state for trial in study.trials] == [TrialState.FAIL]
    assert study.trials[0].user_attrs[ledger.FAILURE].startswith("out of memory: ")
    assert ledger.ATTEMPT not in study.trials[0].user_attrs
    assert seen == [0]


@pytest.mark.parametrize("error", [ActorDiedError(), ActorUnavailableError("connection reset by peer", b"x" * 16)])
def test_a_trial_whose_worker_is_lost_is_tried_again_but_not_for_ever(
    error: Exception, study: optuna.Study, tmp_path: Path
) -> None:
    study.enqueue_trial({})
    study.enqueue_trial({})
    for attempt in (1, 2):
        assert study.ask().number == 0
        assert fail_with(error, study, 0, tmp_path) == [0]
        assert study.trials[0].state == TrialState.WAITING
        assert study.trials[0].user_attrs == {ledger.ATTEMPT: attempt + 1}
    assert study.ask().number == 0
    assert fail_with(error, study, 0, tmp_path) == [0]
    assert study.trials[0].state == TrialState.FAIL
    assert study.trials[0].user_attrs[ledger.FAILURE] == "the worker was lost 3 times"
    assert study.ask().number == 1


@pytest.mark.parametrize("stop", [0.0, 0.75])
def test_candidates_are_pruned_at_a_rung(
    stop: float, tiny_study: TinyStudy, workspace: Workspace, study: optuna.Study
) -> None:
    """Except for baselines and the first few, and never by the scores of their inherited weights."""
    first = plan(tiny_study.config, workspace, "1", None, ())
    study.sampler = SAMPLERS["random"](first.space, 0)
    ledger.enqueue_missing(study, first.space, first.baselines)
    ended: list[int] = []
    rungs = Rungs(study, stop, lambda study, number: ended.append(number))
    proposals = Proposals(study, first.space, "random", workspace, trials=40)
    scores: dict[int, float] = {}
    rng = random.Random(0)
    for _ in range(40):
        config = proposals.suggest("name")
        assert isinstance(config, dict)
        number = config["number"]
        # The baselines have the lowest scores.
        score = rng.random() + bool(choices_of(study.trials[number]))
        trial: Any = SimpleNamespace(config=config)
        inherited = {"step": 0, "score": rng.random(), "seconds": 0.5}
        assert rungs.on_trial_result(None, trial, inherited) == TrialScheduler.CONTINUE
        result = {"step": 3, "score": score, "seconds": 1.0}
        stopped = rungs.on_trial_result(None, trial, result) == TrialScheduler.STOP
        better = sum(other > score for other in scores.values())
        baseline = len(scores) < len(first.baselines)
        judged = not baseline and len(scores) >= ledger.MIN_TRIALS_AT_RUNG
        assert stopped == (stop > 0 and judged and better > 0.25 * len(scores))
        scores[number] = score
        if not stopped:
            ledger.complete(study, number, score, {})
    pruned = [trial.number for trial in study.trials if trial.state == TrialState.PRUNED]
    assert ended == pruned
    assert (len(pruned) > 15) == bool(stop)
    assert {trial.user_attrs["rung"] for trial in study.trials if trial.number in pruned} <= {3}


@pytest.mark.parametrize("trials", [2, None])
def test_the_last_trial_may_be_wanted_again(trials: int | None, tiny_study: TinyStudy, workspace: Workspace) -> None:
    """With two workers and two trials, Tune must wait while both run instead of ending the search."""
    first = plan(tiny_study.config, workspace, "1", None, ())
    url = sqlite_url(tiny_study.root / f"{trials}.db")
    study = ledger.open_study(url, "stage-1", SAMPLERS["random"](first.space, 0))
    ledger.enqueue_missing(study, first.space, first.baselines[:2])
    proposals = Proposals(study, first.space, "random", workspace, trials)
    asked = [proposals.suggest(name) for name in "ab"]
    assert [config["number"] for config in asked if isinstance(config, dict)] == [0, 1]
    assert proposals.suggest("c") is None
    ledger.complete(study, 0, 0.5, {})
    ledger.requeue_lost(study, 1)
    assert proposals.suggest("d") == asked[1]
    ledger.complete(study, 1, 0.5, {})
    assert proposals.suggest("e") == Proposals.FINISHED


def test_an_exhausted_space_ends_the_stage_once_nothing_is_running(
    tiny_study: TinyStudy, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space has a single architecture beside the base model, and the stage has ten trials."""
    monkeypatch.setattr(runner, "MAX_DUPLICATES", 20)  # instead of 100
    base, graph = workspace.base()
    uniform = Architecture.uniform(base, graph, expansion=Fraction(1, 2))
    few = of_genes(plan(tiny_study.config, workspace, "1", None, ()).space, stack=(1,), expansion=(Fraction(1, 2),))
    space = replace(few, start=uniform, vary=frozenset({SIZES}))
    study = ledger.open_study(sqlite_url(tmp_path / "study.db"), "stage-1", SAMPLERS["random"](space, 0))
    ledger.enqueue(study, space, Architecture.uniform(base, graph), "base model")
    proposals = Proposals(study, space, "random", workspace, 10)
    first, second = (proposals.suggest(name) for name in "ab")
    assert isinstance(first, dict) and isinstance(second, dict)
    assert proposals.suggest("c") is None
    assert len(study.trials) == 2 + 20
    # Neither waiting for the two trials nor resuming the study adds more duplicates.
    assert proposals.suggest("c") is None
    ledger.complete(study, first["number"], 0.5, {})
    ledger.requeue_lost(study, second["number"])
    assert proposals.suggest("d") == second
    ledger.requeue_unfinished(study)
    resumed = Proposals(study, space, "random", workspace, 10)
    assert resumed.suggest("e") == second
    assert resumed.suggest("f") is None
    ledger.complete(study, second["number"], 0.6, {})
    # A lost worker is none of the duplicates' business, which get the trial's result.
    assert [trial.number for trial in study.trials if ledger.ATTEMPT in trial.user_attrs] == [second["number"]]
    assert resumed.suggest("g") == Proposals.FINISHED
    assert Proposals(study, space, "random", workspace, 10).suggest("h") == Proposals.FINISHED
    assert len(study.trials) == 2 + 20
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
