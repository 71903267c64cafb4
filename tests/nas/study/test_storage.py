"""The storage's cache agrees with the database, although it seldom queries it; errors of the database are one line."""

import contextlib
import gc
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import IntegrityError

from nas.study import ledger
from nas.study.storage import (
    DamagedStorageError,
    StorageError,
    check_storage,
    open_storage,
    reporting_failures,
    sqlite_url,
    trial_id,
)

TEMPLATE = optuna.create_trial(
    state=TrialState.RUNNING,
    params={"layer1/mid/op": "tanh", "layer1/size": 0.25},
    distributions={
        "layer1/mid/op": CategoricalDistribution(("gelu", "tanh")),
        "layer1/size": FloatDistribution(0.0, 1.0),
    },
    user_attrs={"architecture": "[1, 2]", "params": 7},
    system_attrs={"key": [1, None]},
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "study.db")


def study_of(storage: BaseStorage, name: str = "s") -> optuna.Study:
    return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)


@contextlib.contextmanager
def listening(to: str, listener: Callable[..., object]) -> Iterator[None]:
    """A listener to an event of all databases during the block."""
    event.listen(Engine, to, listener)
    try:
        yield
    finally:
        event.remove(Engine, to, listener)


def fresh(url: str) -> list[FrozenTrial]:
    """The trials as Optuna's own storage reads them."""
    storage = RDBStorage(url)
    try:
        return study_of(storage).get_trials()
    finally:
        storage.engine.dispose()


@pytest.mark.parametrize("template", [TEMPLATE, optuna.create_trial(state=TrialState.WAITING, user_attrs={"a": 1})])
def test_a_new_trial_is_what_optuna_would_have_written(template: FrozenTrial, url: str, tmp_path: Path) -> None:
    storage = open_storage(url)
    study_of(storage).add_trial(template)
    other = sqlite_url(tmp_path / "other.db")
    plain = RDBStorage(other)
    study_of(plain).add_trial(template)
    plain.engine.dispose()
    (written,), (expected,) = fresh(url), fresh(other)
    assert written == expected
    assert written.state == template.state
    assert study_of(storage).get_trials() == [written]


def test_a_new_trial_is_there_whole_or_not_at_all(url: str) -> None:
    """The process dies before the only commit."""
    study = study_of(open_storage(url))

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    with listening("commit", die), pytest.raises(KeyboardInterrupt):
        study.add_trial(TEMPLATE)
    del study
    gc.collect()  # which ends the transaction
    assert fresh(url) == []


def test_the_cache_is_what_the_database_has(url: str) -> None:
    """This holds after every kind of write, in two studies; trials that were read before do not change."""
    storage = open_storage(url)
    study, other = study_of(storage), study_of(storage, "other")
    for _ in range(5):
        study.add_trial(TEMPLATE)
    other.add_trial(TEMPLATE)

    def write(number: int) -> None:
        own = trial_id(study, number)
        ledger._set(study, number, {"attribute": {"a": (1, 2)}, "params": 8})
        ledger.report(study, number, 0, 0.25)
        storage.set_trial_system_attr(own, "key", "value")

    before = study.get_trials(deepcopy=False)
    copies = study.get_trials(deepcopy=True)
    for number, end in enumerate(
        (
            lambda: ledger.complete(study, 0, float("inf"), {"seconds": 1.5}),
            lambda: ledger.fail(study, 1, "diverged"),
            lambda: ledger.prune(study, 2, 30, {}),
            lambda: ledger.requeue_lost(study, 3),
        )
    ):
        write(number)
        assert study.get_trials() == fresh(url)
        end()
        assert study.get_trials() == fresh(url)
    assert study.ask().number == 3
    assert study.ask().suggest_float("x", 0, 1) is not None
    ledger.complete(other, 0, 0.5, {})
    assert study.get_trials() == fresh(url)
    assert [trial.state.name for trial in study.get_trials()] == [
        "COMPLETE", "FAIL", "PRUNED", "RUNNING", "RUNNING", "RUNNING",
    ]  # fmt: skip
    assert [trial.value for trial in other.get_trials()] == [0.5]
    assert before == copies


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE trial_user_attributes SET value_json = '{'", "Expecting property name"),
        ('UPDATE trial_params SET distribution_json = \'{"name": "FloatDistribution"}\'', "'attributes'"),
        ("UPDATE trial_params SET distribution_json = CAST(x'ff' AS TEXT)", "Could not decode to UTF-8"),
        ("UPDATE trials SET state = 'ENDED'", "'ENDED' is not among"),
        ("UPDATE trials SET datetime_start = 'yesterday'", "isoformat string"),
    ],
)
def test_a_damaged_storage(statement: str, reason: str, url: str) -> None:
    study_of(open_storage(url)).add_trial(TEMPLATE)
    with contextlib.closing(sqlite3.connect(make_url(url).database or "")) as connection:
        connection.execute(statement)
        connection.commit()
    line = rf"^the storage '{re.escape(url)}' is damaged \(.*{reason}.*\): restore it from a copy, or search anew$"
    with pytest.raises(DamagedStorageError, match=line):
        study_of(open_storage(url)).get_trials()


def full(url: str) -> None:
    """A trial that does not fit on the disk."""
    study = study_of(open_storage(url))
    with contextlib.closing(sqlite3.connect(make_url(url).database or "")) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    limit = f"PRAGMA max_page_count = {pages}"
    with listening("begin", lambda connection: connection.exec_driver_sql(limit)):
        study.add_trial(optuna.create_trial(state=TrialState.WAITING, user_attrs={"a": "b" * 100_000}))


def fault(url: str) -> None:
    raise ZeroDivisionError


def wrong_statement(url: str) -> None:
    open_storage(url)
    with create_engine(url, poolclass=NullPool).connect() as connection:
        connection.exec_driver_sql("INSERT INTO trials (trial_id, state) VALUES (1, NULL)")


def wrapped(url: str) -> None:
    """Raise the error as Ray Tune does with errors of its callbacks."""
    try:
        full(url)
    except StorageInternalError:
        raise RuntimeError("a text of many\nlines")  # noqa: B904


@pytest.mark.parametrize("work", [full, wrapped])
def test_a_storage_that_can_keep_no_more(work: Callable[[str], None], url: str) -> None:
    line = rf"^the storage '{url}' failed \(database or disk is full\); once it works again, .* --resume continues$"
    with pytest.raises(StorageError, match=line), reporting_failures(url):
        work(url)


@pytest.mark.parametrize(("work", "error"), [(fault, ZeroDivisionError), (wrong_statement, IntegrityError)])
def test_faults_stay_what_they_are(work: Callable[[str], None], error: type[Exception], url: str) -> None:
    with pytest.raises(error), reporting_failures(url):
        work(url)


@pytest.mark.parametrize(
    ("open_url", "url", "message"),
    [
        (check_storage, "sqlite://", "give a file, as in sqlite:///study.db"),
        (check_storage, "sqlite:///:memory:", "give a file"),
        (check_storage, "oracle+nothing://u:secret@h/d", "Can't load plugin"),
        (check_storage, "redis://u:secret@h/d", "Can't load plugin"),
        (check_storage, "nonsense", "Could not parse"),
        (check_storage, "", "Could not parse"),
        (check_storage, "postgresql+psycopg://u:secret@127.0.0.1:1/d", "Connection refused"),
        (check_storage, "postgresql://u@h:port/d", "invalid literal"),
        (open_storage, "mysql+nothing://u:secret@h/d", "Can't load plugin"),
        (open_storage, "://", "Could not parse"),
        (open_storage, "sqlite:////no/such/folder/study.db", "unable to open database file"),
    ],
)
def test_storages_that_are_none(open_url: Callable[[str], object], url: str, message: str) -> None:
    with pytest.raises(StorageError, match="cannot open the storage") as caught:
        open_url(url)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StorageError, match=r"install its driver .*psycopg") as caught:
        check_storage("postgresql+psycopg://h/d")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["r?lr=1", "p%20q", "a b#c", "it's", 'a"b', "größe", "a\nb"])
def test_a_database_is_in_its_folder_whatever_that_is_called(name: str, tmp_path: Path) -> None:
    file = tmp_path / name / "study.db"
    file.parent.mkdir()
    optuna.create_study(study_name="s", storage=open_storage(sqlite_url(file)))
    assert file.exists() and [path.name for path in tmp_path.iterdir()] == [name]
    assert make_url(sqlite_url(file)).database == str(file)
