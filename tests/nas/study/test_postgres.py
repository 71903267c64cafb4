"""Studies in a PostgreSQL database."""

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from distill.extensions import VARIABLE
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.description import Parameters
from nas.study.lock import StudyInUse, sole_driver
from nas.study.storage import sqlite_url
from search_spaces import Architecture
from tests.nas.study import postgres
from tests.nas.study.postgres import Server
from tests.nas.study.test_ledger import BASE, SPACE
from tests.nas.tiny_study import TIMEOUT, TinyStudy, trials_of, wait
from tests.tiny import architectures
from tests.trust_counts import Cases

# An extension of the search.
STOPS_SERVER = """
import os, signal, time
from nas.study import ledger
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import OperationalError

open_study = ledger.open_study

def open_later(url, name, *rest):
    if name.endswith("/confirmation"):
        ledger.open_study = open_study
        os.kill({pid}, signal.SIGQUIT)
        engine = create_engine({url!r}, poolclass=NullPool)
        try:
            while True:
                engine.connect().close()
                time.sleep(0.02)
        except OperationalError:
            pass
    return open_study(url, name, *rest)

ledger.open_study = open_later
"""


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


def studies_in(url: str) -> set[str]:
    """The names of all studies in a database."""
    with opened(url) as storage:
        return set(optuna.get_all_study_names(storage))


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
        told.append(ledger.enqueue_missing(study, Parameters.of(SPACE), wanted))
        running: list[int] = []
        for end in ("scored", "failed", "stopped", "lost"):
            while len(running) < 3:
                trial, architecture = ledger.ask(study, SPACE, "random", labels=3)
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
def test_a_killed_search_goes_on(server: Server, searched: Path, tiny_study: TinyStudy, tmp_path: Path) -> None:
    """No second process can run the study while the first is alive; resumed, it gives the results of one in a file."""
    command = tiny_study.search(tmp_path, "--study", "s", "--storage", server.url)

    def states() -> Counter[TrialState]:
        return Counter(trial.state for trial in trials_in(server.url, "s/stage-1"))

    def stopped_in_the_middle() -> bool:
        """Pause the driver; let it go on unless two trials are complete and another is running."""
        process.send_signal(signal.SIGSTOP)
        found = states()
        if found[TrialState.COMPLETE] >= 2 and found[TrialState.RUNNING] > 0:
            return True
        process.send_signal(signal.SIGCONT)
        return False

    with tiny_study.running(*command) as process:
        wait(process, lambda: states().total() > 0)
        wait(process, stopped_in_the_middle)
        with pytest.raises(StudyInUse, match=f"process {process.pid} "), sole_driver(server.url, "s"):
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
    before = trials_in(server.url, "s/stage-1")
    assert any(trial.state == TrialState.RUNNING for trial in before)
    result = tiny_study.run(*command, "--resume")
    assert (result.returncode, result.stderr) == (0, "")

    assert studies_in(server.url) == {"s/stage-1", "s/confirmation"}
    for stage in ("stage-1", "confirmation"):
        assert results(trials_in(server.url, f"s/{stage}")) == results(trials_of(searched, stage))
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


@pytest.mark.slow
@pytest.mark.trust
def test_a_search_waits_for_a_server_that_is_away(
    server: Server, tiny_study: TinyStudy, tmp_path: Path, cases: Callable[..., Cases]
) -> None:
    """A PostgreSQL server is away for ten seconds: no trial is lost or changed, and the search ends normally."""
    counts, rng = cases(sample=1, full=10), random.Random(0)
    for number in range(counts.wanted):
        study = f"away-{number}"
        command = tiny_study.search(tmp_path, "--study", study, "--storage", server.url)

        def complete(name: str = f"{study}/stage-1") -> list[FrozenTrial]:
            return [trial for trial in trials_in(server.url, name) if trial.state == TrialState.COMPLETE]

        ended = rng.randint(1, 4)
        with tiny_study.running(*command) as process:
            wait(process, lambda complete=complete, ended=ended: len(complete()) >= ended)
            server.stop()
            time.sleep(10)
            server.start()
            seen = complete()
            output, errors = process.communicate(timeout=TIMEOUT)
        assert (process.returncode, errors) == (0, "")
        assert output.count("the storage was lost; waiting up to 60 seconds for it\n") == 1
        trials = trials_in(server.url, f"{study}/stage-1")
        assert [trials[trial.number] for trial in seen] == seen
        assert all(trial.state.is_finished() for trial in trials)
        counts["away for ten seconds, and the search ended normally"] += 1


@pytest.mark.slow
def test_a_search_waits_for_a_server_to_which_it_just_wants_to_connect(
    server: Server, searched: Path, tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is stopped before the search opens the study of the confirmation, which takes a new connection."""
    assert server.process is not None
    (tmp_path / "stops_server.py").write_text(STOPS_SERVER.format(pid=server.process.pid, url=server.url))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "stops_server")
    with tiny_study.running(*tiny_study.search(tmp_path, "--study", "gone", "--storage", server.url)) as process:
        wait(process, lambda: server.process is not None and server.process.poll() is not None)
        time.sleep(3)
        server.start()
        output, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (0, "")
    assert output.count("the storage was lost; waiting up to 60 seconds for it\n") == 1
    for stage in ("stage-1", "confirmation"):
        assert results(trials_in(server.url, f"gone/{stage}")) == results(trials_of(searched, stage))


@pytest.mark.slow
def test_a_search_whose_server_dies_says_so_and_goes_on(server: Server, tiny_study: TinyStudy, tmp_path: Path) -> None:
    command = tiny_study.search(tmp_path, "--study", "dies", "--storage", server.url)

    def states() -> Counter[TrialState]:
        return Counter(trial.state for trial in trials_in(server.url, "dies/stage-1"))

    with tiny_study.running(*command) as process:
        wait(process, lambda: states()[TrialState.COMPLETE] >= 1)
        server.stop()
        try:
            _, errors = process.communicate(timeout=120)
        finally:
            server.start()
    assert process.returncode == 2, errors
    assert len(errors.splitlines()) == 1
    assert errors.startswith(f"nas.search: the storage {server.url!r} failed (")
    assert errors.endswith("); once it works again, the same command with --resume continues\n")
    before = [trial for trial in trials_in(server.url, "dies/stage-1") if trial.state == TrialState.COMPLETE]
    result = tiny_study.run(*command, "--resume")
    assert (result.returncode, result.stderr) == (0, "")
    after = trials_in(server.url, "dies/stage-1")
    assert [after[trial.number] for trial in before] == before
    assert not [trial for trial in after if not trial.state.is_finished()]
