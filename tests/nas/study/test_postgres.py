"""Studies in a PostgreSQL database."""

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.storage import sqlite_url
from search_spaces import Architecture
from tests.nas.study import postgres
from tests.nas.study.postgres import Server
from tests.nas.study.test_ledger import BASE, SPACE
from tests.nas.tiny_study import TIMEOUT, TinyStudy, trials_of, wait
from tests.tiny import architectures


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres.running() as server:
        yield server


@contextlib.contextmanager
def opened(url: str) -> Iterator[RDBStorage]:
    storage = RDBStorage(url)
    try:
        yield storage
    finally:
        storage.engine.dispose()


def trials_in(url: str, name: str) -> list[FrozenTrial]:
    """All trials of a study, which may not exist yet, as another process reads them."""
    with opened(url) as storage:
        if name not in optuna.get_all_study_names(storage):
            return []
        return optuna.load_study(study_name=name, storage=storage).get_trials()


def facts(trial: FrozenTrial) -> tuple[Any, ...]:
    """Everything that is recorded of a trial, except for its times."""
    return (
        trial.number,
        trial.state,
        trial.values,
        trial.params,
        trial.distributions,
        trial.user_attrs,
        trial.system_attrs,
        trial.intermediate_values,
    )


def drive(url: str, goals: tuple[str, ...]) -> tuple[Any, ...]:
    """The ledger after a search whose trials end in every possible way, with a new connection after each cut."""
    rng = random.Random(0)
    wanted = [(architecture, f"baseline {i}", i or None) for i, architecture in enumerate(architectures(3, BASE))]
    told: list[Any] = []
    for cut in range(3):
        study = ledger.open_study(url, "s/stage-1", SAMPLERS["random"](SPACE, 0), goals)
        left = ledger.requeue_unfinished(study)
        assert left == (2 if cut else 0)
        told.append(ledger.enqueue_missing(study, SPACE, wanted))
        running: list[int] = []
        for end in ("scored", "failed", "stopped", "lost"):
            while len(running) < 3:
                trial, architecture = ledger.ask(study, SPACE, "random")
                told.append((trial.number, architecture))
                if not ledger.resolve_duplicate(study, trial.number):
                    running.append(trial.number)
            number = running.pop(rng.randrange(3))
            for step in range(2 if len(goals) == 1 else 0):
                ledger.report(study, number, step, rng.random())
                told.append(ledger.should_prune(study, number, step, 0.5))
            match end:
                case "scored":
                    ledger.complete(study, number, rng.random(), {"standard_error": 1 / 3, "parts": [1.0, "×"]})
                case "failed":
                    ledger.fail(study, number, f"diverged: {'×' * 2000}")
                case "stopped":
                    ledger.prune(study, number, 1, {"seconds": 0.1})
                case "lost":
                    ledger.requeue_lost(study, number)
        views = (ledger.finished, ledger.ranked, ledger.scored, ledger.waiting, ledger.running)
        told.append(([[trial.number for trial in view(study)] for view in views], ledger.history(study)))
        study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    return told, [facts(trial) for trial in trials_in(url, "s/stage-1")]


@pytest.mark.parametrize("goals", [("score",), ("score", "params")])
def test_the_ledger_is_the_same_on_every_storage(goals: tuple[str, ...], server: Server, tmp_path: Path) -> None:
    server.execute(f"CREATE DATABASE {'_'.join(goals)}")
    here, there = sqlite_url(tmp_path / "study.db"), server.url.replace("/postgres?", f"/{'_'.join(goals)}?")
    told, trials = drive(there, goals)
    assert (told, trials) == drive(here, goals)
    assert {trial[1] for trial in trials} >= {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    assert any(ledger.ATTEMPT in trial[5] for trial in trials)


def results(trials: list[FrozenTrial]) -> Counter[tuple[Architecture, int | None, float]]:
    """What was evaluated, with its scores."""
    return Counter(
        (ledger.architecture_of(trial), trial.user_attrs.get(ledger.SEED), trial.values[0])
        for trial in trials
        if trial.state == TrialState.COMPLETE
    )


@pytest.mark.slow
def test_a_search_whose_server_dies_says_so_and_goes_on(
    server: Server, searched: Path, tiny_study: TinyStudy, tmp_path: Path
) -> None:
    """Resumed, it gives the results of a search in a file."""
    command = tiny_study.search(tmp_path, "--study", "s", "--storage", server.url)

    def complete() -> list[FrozenTrial]:
        return [trial for trial in trials_in(server.url, "s/stage-1") if trial.state == TrialState.COMPLETE]

    with tiny_study.running(*command) as process:
        wait(process, lambda: bool(complete()))
        server.stop()
        try:
            _, errors = process.communicate(timeout=TIMEOUT)
        finally:
            server.start()
    assert process.returncode == 2, errors
    assert len(errors.splitlines()) == 1
    assert errors.startswith(f"nas.search: the storage {server.url!r} failed (")
    assert errors.endswith("); once it works again, the same command with --resume continues\n")
    before = complete()
    result = tiny_study.run(*command, "--resume")
    assert (result.returncode, result.stderr) == (0, "")
    after = trials_in(server.url, "s/stage-1")
    assert [after[trial.number] for trial in before] == before
    for stage in ("stage-1", "confirmation"):
        assert results(trials_in(server.url, f"s/{stage}")) == results(trials_of(searched, stage))
    assert not (tmp_path / "s" / "study.db").exists()
    best, expected = (
        json.loads((folder / "stage-1" / "best.json").read_text())["winner"]["architecture"]
        for folder in (tmp_path / "s", searched)
    )
    assert best == expected
