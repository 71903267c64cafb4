"""A search that is killed before any write to its ledger, and resumed, gives the same results as an undisturbed one."""

import gc
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from ray.tune.schedulers import TrialScheduler

from nas.planning.stages import Plan, plan
from nas.preparation.workspace import Workspace
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.storage import sqlite_url
from nas.workers.runner import Proposals, Recorder, Rungs
from tests.nas.processes import Killed
from tests.nas.records import facts
from tests.nas.tiny_study import TinyStudy, trials_of
from tests.trust_counts import Cases


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


@pytest.mark.trust
@pytest.mark.parametrize("sampler", ["tpe", pytest.param("lanas", marks=pytest.mark.slow)])
def test_killed_before_any_write(
    sampler: str, fate: Fate, tiny_study: TinyStudy, workspace: Workspace, tmp_path: Path, cases: Callable[..., Cases]
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
