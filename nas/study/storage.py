"""Optuna's storage of the studies, made faster for a single process that runs the search (`nas.study.lock`).

Apart from NSGA-II's selection of parents, what the project uses of Optuna without a public name is all in this module
(tests/test_private_names.py).
"""

import contextlib
import copy
import functools
import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.distributions import distribution_to_json
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage, _CachedStorage
from optuna.storages._rdb.models import (
    NOT_FOUND_MSG,
    StudyModel,
    TrialModel,
    TrialParamModel,
    TrialSystemAttributeModel,
    TrialUserAttributeModel,
)
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Engine, NullPool, create_engine, event, make_url, select
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from search_spaces.errors import UserError

# The kinds of databases in which studies can be stored and locked.
SUPPORTED = ("sqlite", "postgresql")
# Larger than the number of any trial in a database.
LAST = 2**31 - 1
# A search waits so many seconds for a server that is away.
PATIENCE = 60.0


class StorageError(UserError, ValueError):
    """The storage of the studies cannot be opened, or was lost during the search."""


class StorageLostError(StorageError):
    """The connection to the server of the storage was lost during the search."""


class DamagedStorageError(StorageError):
    """What is in the storage is not what was written there."""


class LostError(SQLAlchemyError):
    """The connection to the server of the storage was lost."""


def sqlite_url(path: Path) -> str:
    """The storage URL of a database file."""
    return f"sqlite:///{path.resolve()}"


def open_storage(url: str) -> "Storage":
    """Open the storage at a URL of SQLAlchemy's form.

    Raises:
        StorageError: the storage cannot be opened, or is one of another version of Optuna.
    """
    try:
        connect = {"timeout": 60, "factory": _Connection} if database_of(url) == "sqlite" else {}
        database = _Database(url, engine_kwargs={"connect_args": connect})
    # ValueError: the port is not a number; RuntimeError: another version of Optuna wrote it.
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        raise not_opened(url, error) from None
    return Storage(database)


def database_of(url: str) -> str:
    """Which of the `SUPPORTED` databases a storage is.

    Raises:
        ValueError: none of them.
        sqlalchemy.exc.SQLAlchemyError: the URL has another form.
    """
    name = make_url(url).get_backend_name()
    if name not in SUPPORTED:
        raise ValueError(f"the supported databases are {' and '.join(SUPPORTED)}")
    return name


def storage_of(study: Study) -> BaseStorage:
    """The storage of a study, which has no public name."""
    return study._storage


def id_of(study: Study) -> int:
    """The id of a study in its storage, which costs a query by the public way."""
    return study._study_id


def trial_id(study: Study, number: int) -> int:
    """The id of the trial of this number in the study's storage."""
    return storage_of(study).get_trial_id_from_study_id_trial_number(id_of(study), number)


def not_opened(url: str, error: Exception) -> StorageError:
    """The error that says in one line, without the password, which storage cannot be opened and why."""
    reason = _reason(url, error)
    if isinstance(error, ImportError):
        reason = f"install its driver ({reason})"
    return StorageError(f"cannot open the storage {_shown(url)}: {reason}")


def _reason(url: str, error: BaseException) -> str:
    """The first line of an error of the database; SQLite does not always say that the disk is full."""
    reason = str(getattr(error, "orig", None) or error).splitlines()[0]
    if "disk I/O error" in reason and shutil.disk_usage(Path(make_url(url).database or "").parent).free < 2**20:
        return f"{reason}: no space left on the disk"
    return reason


def _shown(url: str) -> str:
    """The URL in quotes, without its password."""
    with contextlib.suppress(SQLAlchemyError, ValueError):
        if make_url(url).password is not None:
            url = make_url(url).render_as_string(hide_password=True)
    return repr(url)


@contextlib.contextmanager
def reporting_lost_storage(url: str) -> Iterator[None]:
    """In this block, report the loss of the storage, or a full disk, as a `StorageError`.

    Raises:
        StorageLostError: the connection to the server was lost, or a new one could not be made.
        StorageError: the disk is full, or cannot be written. Other database errors are bugs and are raised as they are.
    """
    try:
        yield
    except Exception as error:
        # Optuna wraps the database's error, and Ray Tune raises yet another error while it handles that.
        link: BaseException | None = error
        failure = None
        while link is not None:
            failure = link if isinstance(link, LostError | OperationalError | InterfaceError) else failure
            link = link.__cause__ or link.__context__
        lost = failure is not None and _is_lost(url, failure)
        if failure is None or (isinstance(error, StorageError) and not lost):
            raise
        raise (StorageLostError if lost else StorageError)(
            f"the storage {_shown(url)} failed ({_reason(url, failure)}); once it works again, the same command with "
            "--resume continues"
        ) from None


def _is_lost(url: str, failure: LostError | OperationalError | InterfaceError) -> bool:
    """Whether the error means that the server is away: a connection was lost, or could not be made."""
    if isinstance(failure, LostError) or failure.connection_invalidated:
        return True
    return failure.statement is None and database_of(url) != "sqlite"


def retrying(url: str, work: Callable[[bool], None], say: Callable[[str], object]) -> None:
    """Call `work(False)`. Whenever it loses the storage, wait until the server is back, and call `work(True)`.

    Args:
        say: prints a line.

    Raises:
        StorageLostError: the server was not back after PATIENCE seconds. Losses in quick succession share these.
        StorageError: see `reporting_lost_storage`.
    """
    began, deadline, again = time.monotonic(), 0.0, False
    while True:
        try:
            with reporting_lost_storage(url):
                return work(again)
        except StorageLostError:
            now = time.monotonic()
            if not again or now - began > PATIENCE:
                deadline = now + PATIENCE
            say(f"the storage was lost; waiting up to {max(deadline - now, 0):.0f} seconds for it")
            if not _wait_until_reachable(url, deadline):
                raise
            began, again = time.monotonic(), True


def _checked(read: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method of Optuna's storage that reads: if what is stored cannot be decoded, because the file was
    damaged or written by another program, that is a `DamagedStorageError`.
    """

    @functools.wraps(read)
    def reading(database: RDBStorage, *arguments: Any, **named: Any) -> Any:
        try:
            return read(database, *arguments, **named)
        except (StorageInternalError, DatabaseError) as error:
            cause = error if isinstance(error, DatabaseError) else error.__cause__ or error
            # Lost connections are no damage, and neither are other databases' errors than SQLite's.
            if type(cause) is not DatabaseError and "Could not decode to UTF-8" not in str(cause):
                raise
            raise _damaged(database.url, cause) from None
        except KeyError as error:
            if error.args == (NOT_FOUND_MSG,):
                raise
            raise _damaged(database.url, error) from None
        except (ValueError, TypeError, LookupError) as error:
            raise _damaged(database.url, error) from None

    return reading


def _damaged(url: str, error: BaseException) -> DamagedStorageError:
    return DamagedStorageError(
        f"the storage {_shown(url)} is damaged ({_reason(url, error)}): restore it from a copy, or search anew"
    )


def _wait_until_reachable(url: str, deadline: float) -> bool:
    """Wait until the server of a storage accepts connections; returns whether it did so before the deadline."""
    engine = create_engine(url, poolclass=NullPool)
    while time.monotonic() < deadline:
        time.sleep(1)
        with contextlib.suppress(SQLAlchemyError), engine.connect():
            return True
    return False


def _stay_away(context: ExceptionContext) -> None:
    """Do not reconnect to a server after a connection was lost, because the lock may have been lost with it."""
    if context.is_disconnect and context.engine is not None:

        def refuse(*arguments: object) -> None:
            raise LostError("the connection to the storage was lost")

        event.listen(context.engine, "do_connect", refuse)


class _Connection(sqlite3.Connection):
    """A connection that commits without waiting for the disk, because every trial makes many commits. A killed process
    loses nothing; after a power failure the last commits may be missing, but the file is intact.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = NORMAL")

    def __del__(self) -> None:
        """Close the connection when it is garbage-collected: Optuna's storages do not close theirs, and since Python
        3.13 a connection that is not closed raises a ResourceWarning.
        """
        with contextlib.suppress(sqlite3.ProgrammingError):  # it was never opened
            self.close()


class _Database(RDBStorage):
    """Writes a new trial with all its values at once, whereas Optuna queries the database for each value."""

    get_all_studies = _checked(RDBStorage.get_all_studies)
    get_study_directions = _checked(RDBStorage.get_study_directions)
    get_study_id_from_name = _checked(RDBStorage.get_study_id_from_name)
    get_study_name_from_id = _checked(RDBStorage.get_study_name_from_id)
    get_study_system_attrs = _checked(RDBStorage.get_study_system_attrs)
    get_study_user_attrs = _checked(RDBStorage.get_study_user_attrs)
    get_trial = _checked(RDBStorage.get_trial)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        event.listen(self.engine, "handle_error", _stay_away)

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        event.listen(self.engine, "handle_error", _stay_away)

    @_checked
    def study_names(self) -> list[str]:
        """The names of all studies. Optuna's own query decodes all attributes of the studies, with a note per trial."""
        with Session(self.engine) as session:
            return list(session.scalars(select(StudyModel.study_name).order_by(StudyModel.study_id)))

    @_checked
    def _get_trials(self, *arguments: Any, **named: Any) -> list[FrozenTrial]:
        return super()._get_trials(*arguments, **named)

    def _get_prepared_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None, session: Session
    ) -> TrialModel:
        if template_trial is None or template_trial.state.is_finished() or template_trial.intermediate_values:
            return super()._get_prepared_new_trial(study_id, template_trial, session)
        trial = super()._get_prepared_new_trial(study_id, None, session)
        trial.state, trial.datetime_start = template_trial.state, template_trial.datetime_start
        trial_id = trial.trial_id
        for name, distribution in template_trial.distributions.items():
            value = distribution.to_internal_repr(template_trial.params[name])
            text = distribution_to_json(distribution)
            session.add(TrialParamModel(trial_id=trial_id, param_name=name, param_value=value, distribution_json=text))
        for key, value in template_trial.user_attrs.items():
            session.add(TrialUserAttributeModel(trial_id=trial_id, key=key, value_json=json.dumps(value)))
        for key, value in template_trial.system_attrs.items():
            session.add(TrialSystemAttributeModel(trial_id=trial_id, key=key, value_json=json.dumps(value)))
        return trial


class Storage(_CachedStorage):
    """Optuna's cache without the queries for changes by other processes, because there are none."""

    def __init__(self, database: _Database) -> None:
        super().__init__(database)
        self._database = database
        self._read: set[int] = set()
        self._changed: set[int] = set()

    @property
    def engine(self) -> Engine:
        """The connections to the database."""
        return self._backend.engine

    def study_names(self) -> list[str]:
        """The names of all studies, in the order in which they began.

        Raises:
            DamagedStorageError: the database is damaged.
        """
        return self._database.study_names()

    def _read_trials_from_remote_storage(self, study_id: int) -> None:
        if study_id not in self._read:
            super()._read_trials_from_remote_storage(study_id)
            self._read.add(study_id)
        elif self._changed:
            with self._lock:
                trials = self._backend._get_trials(study_id, None, self._changed, LAST)
                self._add_trials_to_cache(study_id, trials)
            self._changed -= {trial._trial_id for trial in trials}

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """As Optuna's, but sorts numbers instead of trials, which takes a tenth of the time; every proposal does it
        several times.
        """
        self._read_trials_from_remote_storage(study_id)
        with self._lock:
            cached = self._studies[study_id].trials
            trials = [cached[number] for number in sorted(cached)]
            if states is not None:
                trials = [trial for trial in trials if trial.state in states]
            return copy.deepcopy(trials) if deepcopy else trials

    def _copied(self, trial_id: int) -> FrozenTrial:
        """Replace the trial in the cache by a copy, which may be changed because nobody has a reference to it yet."""
        study_id, number = self._trial_id_to_study_id_and_number[trial_id]
        trials = self._studies[study_id].trials
        trials[number] = copy.copy(trials[number])
        return trials[number]

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        super().set_trial_user_attr(trial_id, key, value)
        trial = self._copied(trial_id)
        trial.user_attrs = trial.user_attrs | {key: json.loads(json.dumps(value))}

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        super().set_trial_intermediate_value(trial_id, step, intermediate_value)
        trial = self._copied(trial_id)
        trial.intermediate_values = trial.intermediate_values | {step: intermediate_value}

    def set_trial_param(self, trial_id: int, *arguments: Any, **named: Any) -> None:
        self._changed.add(trial_id)
        super().set_trial_param(trial_id, *arguments, **named)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        done = super().set_trial_state_values(trial_id, state, values)
        if state.is_finished():
            trial = self._copied(trial_id)
            trial.state, trial.values = state, values
            with Session(self.engine) as session:
                trial.datetime_complete = session.get_one(TrialModel, trial_id).datetime_complete
        else:
            self._changed.add(trial_id)
        return done

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        super().set_trial_system_attr(trial_id, key, value)
        trial = self._copied(trial_id)
        trial.system_attrs = trial.system_attrs | {key: json.loads(json.dumps(value))}
