"""Studies in a PostgreSQL database."""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from nas import ledger
from nas.lock import sole_driver
from nas.samplers import SAMPLERS
from search_spaces import Architecture
from tests.nas import postgres
from tests.nas.house import House, trials_of, wait
from tests.nas.postgres import Server
from tests.nas.test_ledger import BASE, SPACE
from tests.tiny import architectures


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres.running() as server:
        yield server


def trials_in(url: str, name: str) -> list[FrozenTrial]:
    """All trials of a study, which may not be there yet, as another process sees them."""
    storage = RDBStorage(url)
    try:
        if name not in optuna.get_all_study_names(storage):
            return []
        return optuna.load_study(study_name=name, storage=storage).get_trials()
    finally:
        storage.engine.dispose()


def facts(trial: FrozenTrial) -> tuple[Any, ...]:
    """All of a trial but when it ran."""
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


def drive(url: str, sampler: str) -> tuple[Any, ...]:
    """A search in which trials succeed, fail and are cut short, with a new connection after each cut."""
    rng = random.Random(0)
    wanted = [(architecture, f"baseline {i}", i or None) for i, architecture in enumerate(architectures(3, BASE))]
    told: list[Any] = []
    running: list[int] = []
    while True:
        study = ledger.open_study(url, "s/stage-1", SAMPLERS[sampler](SPACE, 0))
        told.append((ledger.settle(study), ledger.line_up(study, wanted)))
        running = []
        while rng.random() > 0.1:
            while len(running) < 3:
                trial, architecture = ledger.ask(study, SPACE, sampler, labels=3)
                told.append((trial.number, architecture, ledger.draw_index(study, trial._get_latest_trial())))
                running.append(trial.number)
            number = running.pop(rng.randrange(3))
            for step in range(3):
                ledger.report(study, number, step, rng.random())
            if rng.random() < 0.2:
                ledger.fail(study, number, f"diverged: {'×' * 2000}")
            else:
                ledger.complete(study, number, rng.random(), {"standard_error": 0.01, "inherited": 1 / 3})
        ends = tuple([trial.number for trial in f(study)] for f in (ledger.ranked, ledger.scored, ledger.finished))
        study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
        if len(ends[-1]) >= 20:
            return told, ends


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_the_ledger_is_the_same_on_every_storage(sampler: str, server: Server, tmp_path: Path) -> None:
    server.execute(f"CREATE DATABASE {sampler}")
    here, there = ledger.sqlite_url(tmp_path / "study.db"), server.url.replace("/postgres?", f"/{sampler}?")
    assert drive(there, sampler) == drive(here, sampler)
    trials = trials_in(there, "s/stage-1")
    assert [facts(trial) for trial in trials] == [facts(trial) for trial in trials_in(here, "s/stage-1")]
    assert {trial.state for trial in trials} >= {TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING}
    assert any(trial.user_attrs.get(ledger.FAILURE) == ledger.INTERRUPTED for trial in trials)


def results(trials: list[FrozenTrial]) -> Counter[tuple[Architecture, int | None, float | None]]:
    """What was evaluated to the end, and its score."""
    return Counter(
        (ledger.architecture_of(trial), trial.user_attrs.get(ledger.SEED), trial.value)
        for trial in trials
        if trial.user_attrs.get(ledger.FAILURE) != ledger.INTERRUPTED
    )


@pytest.mark.slow
def test_a_killed_search_goes_on(server: Server, searched: Path, house: House, tmp_path: Path) -> None:
    """The driver of one of two searches in one database is killed; resumed, it finds what the file's search found."""
    study = ("--study", "s", "--storage", server.url)
    command = house.search(tmp_path, *study)

    def states() -> Counter[TrialState]:
        return Counter(trial.state for trial in trials_in(server.url, "s/stage-1"))

    with house.running(*command) as process:
        wait(process, lambda: states()[TrialState.COMPLETE] >= 2 and states()[TrialState.RUNNING] > 0)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
    before = trials_in(server.url, "s/stage-1")
    assert any(trial.state == TrialState.RUNNING for trial in before)
    with sole_driver(server.url, "s"):
        pass
    other = house.run(*house.search(tmp_path, "--study", "other", *study[2:], "--seed", "1", "--trials", "4"))
    assert other.returncode == 0, other.stderr
    result = house.run(*command, "--resume")
    assert (result.returncode, result.stderr) == (0, "")

    for stage in ("stage-1", "stage-1-confirmation"):
        assert results(trials_in(server.url, f"s/{stage}")) == results(trials_of(searched, stage))
    assert len(trials_in(server.url, "other/stage-1")) == 4
    after = trials_in(server.url, "s/stage-1")
    for trial in before:
        if trial.state == TrialState.COMPLETE:
            assert after[trial.number] == trial
    assert not (tmp_path / "s" / "study.db").exists()
    best, expected = (
        json.loads((folder / "stage-1" / "best.json").read_text())["winner"]["architecture"]
        for folder in (tmp_path / "s", searched)
    )
    assert best == expected
