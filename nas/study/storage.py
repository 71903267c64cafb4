"""Optuna's storage of the studies in a database, made faster for the only process that writes there (`Folder.lock`).

Apart from NSGA-II's selection of parents, what the project uses of Optuna without a public name is all in this module
(tests/test_private_names.py).
"""

import contextlib
import functools
import json
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.distributions import distribution_to_json
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage, get_storage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial
from sqlalchemy import URL, NullPool, create_engine, event, make_url
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.orm import Session

from foundation.errors import UserError


class StorageError(UserError, ValueError):
    """The storage of the studies cannot be opened, read or written."""


class DamagedStorageError(StorageError):
    """What is in the storage is not what was written there."""


def sqlite_url(path: Path) -> str:
    return URL.create("sqlite", database=str(path.resolve())).render_as_string()


def file_of(url: str) -> Path | None:
    """The file of a SQLite database; None for servers, and for names that only SQLite understands (file:...)."""
    parts = make_url(url)
    named = parts.get_backend_name() == "sqlite" and (parts.database or "").removeprefix(":memory:")
    return Path(named) if named and not named.startswith("file:") else None


def kept_url(url: str) -> str:
    """The URL as a file may keep it: of an absolute path, and without its password."""
    parts, file = make_url(url).difference_update_query(("password", "passwd")), file_of(url)
    parts = parts.set(database=str(file.resolve())) if file is not None else parts
    return parts.render_as_string(hide_password=True)


def open_storage(url: str, create: bool = True) -> BaseStorage:
    """Open the storage at a URL of SQLAlchemy's form.

    Args:
        create: whether the file of a SQLite database may be created.

    Raises:
        StorageError: the storage cannot be opened, or is one of another version of Optuna.
    """
    logging.getLogger("optuna.storages").setLevel(logging.ERROR)  # a lost server is one error, without a warning
    with _opening(url):
        file, sqlite = file_of(url), make_url(url).get_backend_name() == "sqlite"
        if not create and file is not None and not file.exists():
            raise ValueError(f"there is no file {file}")
        connect = {"timeout": 60, "factory": _Connection} if sqlite else {}
        return get_storage(_Database(url, engine_kwargs={"connect_args": connect}))


def check_storage(url: str, new_folder: Path | None = None) -> None:
    """Check that a storage keeps what is written and, if it is on a server, that it can be reached, before a search
    prepares for hours what it could not record.

    Args:
        new_folder: a folder that will exist by then.

    Raises:
        StorageError: it does not, or cannot.
    """
    with _opening(url):
        parts = make_url(url)
        if parts.get_backend_name() != "sqlite":
            create_engine(url, poolclass=NullPool).connect().close()
        elif parts.database in (None, "", ":memory:"):
            raise ValueError("a search in memory could not be resumed; give a file, as in sqlite:///study.db")
        elif (file := file_of(url)) is not None:
            there = file.resolve().parent
            if not there.is_dir() and (new_folder is None or there != new_folder.resolve()):
                raise ValueError(f"there is no folder {there}")


def storage_of(study: Study) -> BaseStorage:
    """The storage of a study, which has no public name."""
    return study._storage


def id_of(study: Study) -> int:
    """The id of a study in its storage, which costs a query by the public way."""
    return study._study_id


def trial_id(study: Study, number: int) -> int:
    """The id of the trial of this number in the study's storage."""
    return storage_of(study).get_trial_id_from_study_id_trial_number(id_of(study), number)


@contextlib.contextmanager
def reporting_failures(url: str) -> Iterator[None]:
    """In this block, report the loss of the storage, or a full disk, as a `StorageError`.

    Raises:
        StorageError: the storage cannot be reached or written. Other database errors are bugs and are raised as they
            are.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        # Optuna wraps the database's error, and Ray Tune raises yet another error while it handles that.
        link: BaseException | None = error
        while link is not None and not isinstance(link, OperationalError | InterfaceError):
            link = link.__cause__ or link.__context__
        if link is None:
            raise
        raise StorageError(
            f"the storage {_shown(url)} failed ({_reason(url, link)}); once it works again, the same command with "
            "--resume continues"
        ) from None


@contextlib.contextmanager
def _opening(url: str) -> Iterator[None]:
    """Report errors in this block in one line, without the password."""
    try:
        yield
    # ValueError: the port is not a number; RuntimeError: another version of Optuna wrote it.
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        if isinstance(error, StorageError):
            raise
        reason = _reason(url, error)
        if isinstance(error, ImportError):
            reason = f"install its driver ({reason})"
        raise StorageError(f"cannot open the storage {_shown(url)}: {reason}") from None


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


def _checked(read: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method of Optuna's storage that reads: if what is stored cannot be decoded, because the file was
    damaged or written by another program, that is a `DamagedStorageError`.
    """

    @functools.wraps(read)
    def reading(database: RDBStorage, *arguments: Any, **named: Any) -> Any:
        try:
            return read(database, *arguments, **named)
        except (StorageInternalError, DatabaseError, ValueError, TypeError, LookupError) as error:
            cause = error.__cause__ or error if isinstance(error, StorageInternalError) else error
            # A storage that is away is not damaged, and neither are others than SQLite's.
            lost = DatabaseError | StorageInternalError | PendingRollbackError
            failed = isinstance(cause, lost) and type(cause) is not DatabaseError
            if (failed and "Could not decode to UTF-8" not in str(cause)) or error.args == (models.NOT_FOUND_MSG,):
                raise
            raise DamagedStorageError(
                f"the storage {_shown(database.url)} is damaged ({_reason(database.url, cause)}): restore it from a "
                "copy, or search anew"
            ) from None

    return reading


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
    """Optuna's storage with two savings: it reads trials again only after a write of this process, and it writes a new
    trial with all its values at once, whereas Optuna queries the database for each value. An operation of Optuna's
    storage takes milliseconds, and a trial has dozens.
    """

    get_all_studies = _checked(RDBStorage.get_all_studies)
    get_study_directions = _checked(RDBStorage.get_study_directions)
    get_study_id_from_name = _checked(RDBStorage.get_study_id_from_name)
    get_study_name_from_id = _checked(RDBStorage.get_study_name_from_id)
    get_study_system_attrs = _checked(RDBStorage.get_study_system_attrs)
    get_study_user_attrs = _checked(RDBStorage.get_study_user_attrs)
    get_trial = _checked(RDBStorage.get_trial)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._watch_writes()

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self._watch_writes()

    def _watch_writes(self) -> None:
        # The studies of which Optuna's cache has all trials as they are in the database.
        self._unchanged: set[int] = set()

        def before_execute(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
            if not statement.startswith("SELECT"):
                self._unchanged.clear()

        event.listen(self.engine, "before_cursor_execute", before_execute)

    @_checked
    def _get_trials(self, study_id: int, *arguments: Any, **named: Any) -> list[FrozenTrial]:
        if study_id in self._unchanged:
            return []
        trials = super()._get_trials(study_id, *arguments, **named)
        self._unchanged.add(study_id)
        return trials

    def _get_prepared_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None, session: Session
    ) -> models.TrialModel:
        if template_trial is None or template_trial.state.is_finished() or template_trial.intermediate_values:
            return super()._get_prepared_new_trial(study_id, template_trial, session)
        trial = super()._get_prepared_new_trial(study_id, None, session)
        trial.state, trial.datetime_start = template_trial.state, template_trial.datetime_start
        of_trial = {"trial_id": trial.trial_id}
        for name, distribution in template_trial.distributions.items():
            value = distribution.to_internal_repr(template_trial.params[name])
            text = distribution_to_json(distribution)
            session.add(models.TrialParamModel(**of_trial, param_name=name, param_value=value, distribution_json=text))
        for model, attributes in (
            (models.TrialUserAttributeModel, template_trial.user_attrs),
            (models.TrialSystemAttributeModel, template_trial.system_attrs),
        ):
            session.add_all(model(**of_trial, key=key, value_json=json.dumps(attributes[key])) for key in attributes)
        return trial
