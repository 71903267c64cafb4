"""A search that is killed and resumed, at any moment and repeatedly, gives the same results as an uninterrupted one."""

import contextlib
import gc
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import sqlalchemy
from ray.tune.schedulers import TrialScheduler

from nas.planning.stages import Plan, plan
from nas.preparation.workspace import Workspace
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.storage import sqlite_url
from nas.workers.runner import Proposals, Recorder, Rungs
from tests.nas.processes import family, kill_all, still_running, workers
from tests.nas.records import STUDIES, facts, lost_before, results
from tests.nas.tiny_study import TIMEOUT, TinyStudy, states, trials_of
from tests.trust_counts import Cases


class Killed(BaseException):
    """Stands for the death of the process."""


class Fate:
    """Raises `Killed` when a database is about to commit, after `left` earlier commits."""

    NEVER = 10**9

    def __init__(self) -> None:
        self.left = self.NEVER

    def __call__(self, connection: object) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.fixture
def fate() -> Iterator[Fate]:
    fate = Fate()
    sqlalchemy.event.listen(sqlalchemy.Engine, "commit", fate)
    yield fate
    sqlalchemy.event.remove(sqlalchemy.Engine, "commit", fate)


def live(folder: Path, sampler: str, first: Plan, workspace: Workspace) -> None:
    """Everything that a driver does except training: scores are random, some trials fail, and half are pruned."""
    folder.mkdir(exist_ok=True)
    study = ledger.open_study(
        sqlite_url(folder / "study.db"), f"{folder.name}/stage-1", SAMPLERS[sampler](first.space, 0)
    )
    try:
        ledger.requeue_unfinished(study)
        again = (first.baselines[1][0], "the same again", None)
        ledger.enqueue_missing(study, first.space, [*first.baselines, again])
        proposals = Proposals(study, first.space, sampler, workspace, trials=14)
        recorder = Recorder(study, lambda study, number: None)
        rungs = Rungs(study, 0.5, lambda study, number: None)
        while isinstance(config := proposals.suggest("name"), dict):
            trial: Any = SimpleNamespace(config=config)
            rng = random.Random(config[ledger.ARCHITECTURE])
            for step in (0, 3):
                result = {"step": step, "score": rng.random(), "seconds": 1.0}
                decision = rungs.on_trial_result(None, trial, result)
                if decision == TrialScheduler.STOP:
                    break
            if decision == TrialScheduler.CONTINUE:
                end = {"final": rng.random(), "attributes": {"standard_error": 0.1}, "seconds": 1.0}
                recorder.on_trial_result(0, [], trial, {ledger.FAILURE: "diverged"} if rng.random() < 0.1 else end)
    finally:
        study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


@pytest.mark.trust
@pytest.mark.parametrize("sampler", ["tpe", pytest.param("lanas", marks=pytest.mark.slow)])
def test_killed_before_any_write(
    sampler: str,
    fate: Fate,
    tiny_study: TinyStudy,
    workspace: Workspace,
    tmp_path: Path,
    cases: Callable[..., Cases],
) -> None:
    """Killed before random writes to the ledger, and resumed: the trials are those of an undisturbed search."""
    counts = cases(sample=10, full=500)
    first = plan(tiny_study.config, workspace, "1", None, ())
    live(tmp_path / "whole", sampler, first, workspace)
    writes, fate.left = fate.NEVER - fate.left, fate.NEVER
    whole = list(map(facts, trials_of(tmp_path / "whole")))
    assert {"COMPLETE", "PRUNED", "FAIL"} == {trial[1].name for trial in whole}
    assert any(ledger.DUPLICATE_OF in trial[4] for trial in whole)
    rng, search = random.Random(0), 0
    while counts["killed"] < counts.wanted:
        search += 1
        done, kills = False, 0
        while not done:
            # Often soon again: while what the last kill left behind is put in order.
            fate.left = rng.randrange(1, rng.choice((30, writes // 3)))
            try:
                live(tmp_path / f"{search}", sampler, first, workspace)
                done = True
            except Killed:
                kills += 1
            # A study that was killed while it was opened keeps the database locked until it is gone.
            gc.collect()
        fate.left = fate.NEVER
        assert kills >= 3
        assert list(map(facts, trials_of(tmp_path / f"{search}"))) == whole
        counts["killed"] += kills


TARGETS = ("driver", "worker", "all")


def kill(
    target: str, process: subprocess.Popen[str], folder: Path, seen: set[psutil.Process]
) -> tuple[str, str] | None:
    """Kill the driver alone, a worker alone as soon as there is one, or all processes at once.

    `seen` gets the processes of the search. Returns what was killed, and doing what; None if the search has ended.
    """
    while process.poll() is None:
        everyone = family(process.pid)
        found = workers(everyone)
        if found or target != "worker":
            break
    else:
        return None
    if target == "worker" and lost_before(folder):
        target = "all"
    running = [name for name in STUDIES if states(folder, name)["RUNNING"]]
    doing = (running[0] if running else "between trials") if found else "starting"
    kill_all({"driver": everyone[:1], "worker": found[:1], "all": everyone}[target])
    seen.update(everyone)
    return target, doing


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "sampler", "trials", "kills"), [("1", "lanas", 18, 9), ("all", "tpe", 12, 6)])
def test_killed_at_any_moment(
    stage: str, sampler: str, trials: int, kills: int, tiny_study: TinyStudy, workspace: Workspace, tmp_path: Path
) -> None:
    preset = tiny_study.variant(
        tmp_path / "tiny.toml",
        ('trials = 6\nsampler = "random"', f'trials = {trials}\nsampler = "{sampler}"\nstop = 0.3'),
    )

    def start(folder: Path) -> subprocess.Popen[str]:
        resume = ["--resume"] if (folder / "config.toml").exists() else []
        return tiny_study.start(
            *tiny_study.search(folder.parent, "--workers", 1, "--stage", stage, *resume, preset=preset)
        )

    for name in ("whole", "whole again"):
        begun = time.monotonic()
        with start(tmp_path / name / "tiny") as process:
            assert process.communicate(timeout=TIMEOUT)[1] == ""
        duration = time.monotonic() - begun
    whole = results(tmp_path / "whole" / "tiny")
    assert results(tmp_path / "whole again" / "tiny") == whole
    assert {trial[1].name for trial in whole["stage-1"]} == {"COMPLETE", "PRUNED"}

    rng = random.Random(0)
    hits: list[tuple[str, str]] = []
    seen: set[psutil.Process] = set()
    searches = 0
    while len(hits) < kills:
        searches += 1
        folder = tmp_path / f"{searches}" / "tiny"
        process = start(folder)
        try:
            while process.poll() is None:
                if len(hits) == kills:
                    process.wait(TIMEOUT)
                    break
                left = rng.uniform(0, duration)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(left)
                if hit := kill(TARGETS[len(hits) % 3], process, folder, seen):
                    hits.append(hit)
                    print(f"search {searches}, kill {len(hits)} after up to {left:.0f} s of {duration:.0f} s:", *hit)
                    if hit[0] != "worker":
                        process.communicate(timeout=TIMEOUT)
                        process = start(folder)
            _, error = process.communicate()
        finally:
            process.kill()
        assert process.returncode == 0, error
        assert results(folder) == whole
    # What they were doing is chance, but not all of them were starting.
    assert {doing for _, doing in hits} & set(STUDIES)
    # Nothing is left of all these processes.
    assert not still_running(seen, TIMEOUT)
