"""The lock by which only one process at a time runs a study; it is released when that process ends, however it ends."""

import contextlib
import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from nas.study.storage import StorageError, database_of, not_opened
from search_spaces.errors import UserError

# A context manager that yields None while it holds the lock; if another process holds it, it yields a description of
# that process, "" if that is unknown.
Lock = Callable[[Connection, str], contextlib.AbstractContextManager[str | None]]


class StudyInUse(UserError, ValueError):
    """Another process is running the study."""


@contextlib.contextmanager
def sole_driver(url: str, name: str) -> Iterator[None]:
    """Hold the lock of the studies under `name` in the storage `url`; readers such as the dashboard do not need it.

    The lock of a database server lasts as long as one connection. A restart of the server also breaks the storage's
    connections (`nas.study.storage`), so the search leaves this block, and acquires the lock anew before it goes on.

    Raises:
        StudyInUse: another process holds the lock.
        StorageError: the storage cannot be opened, or locks are not supported for this kind of database.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = LOCKS[database_of(url)]
            # No connection pool may recycle the connection, and no transaction may stay open during the search.
            engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
            holder = stack.enter_context(lock(stack.enter_context(engine.connect()), name))
        except (SQLAlchemyError, ImportError, ValueError, OSError) as error:
            raise not_opened(url, error) from None
        if holder is not None:
            raise StudyInUse(
                f"study {name!r} is already being run by {holder or 'another process'}: "
                "wait until it has ended, or choose another --study"
            )
        yield


def check_storage(url: str) -> None:
    """Check that a storage is of a supported kind and, if it is on a server, that it can be reached, before a search
    prepares for hours what it could not record.

    Raises:
        StorageError: it is not, or cannot.
    """
    try:
        if database_of(url) != "sqlite":
            with create_engine(url, poolclass=NullPool).connect():
                pass
    except (SQLAlchemyError, ImportError, ValueError) as error:
        raise not_opened(url, error) from None


@contextlib.contextmanager
def _file(connection: Connection, name: str) -> Iterator[str | None]:
    """A lock on a file next to the database. Processes that the holder starts, such as Ray's, do not inherit it."""
    database = connection.scalar(text("SELECT file FROM pragma_database_list WHERE name = 'main'"))
    if not database:
        raise ValueError("a search in memory could not be resumed; give a file, as in sqlite:///study.db")
    with _lock_file(database, name).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            yield file.read()
            return
        file.truncate(0)
        file.write(f"{_this_process()} since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
        file.flush()
        yield None


def file_holder(database: Path, name: str) -> str | None:
    """A description of the process that holds the lock of the studies under `name` in a database file; None if no
    process does.

    Raises:
        StorageError: the file of the lock cannot be read.
    """
    path = _lock_file(database, name)
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror}): remove it if no search is running") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
    return None


def _lock_file(database: Path | str, name: str) -> Path:
    return Path(f"{database}.{quote(name, safe='')}.lock")


@contextlib.contextmanager
def _postgresql(connection: Connection, name: str) -> Iterator[str | None]:
    """A session-level advisory lock. Other processes see the session's name, and by keepalives the server notices if
    the holder's host is lost.
    """
    key = {"key": int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)}
    for setting, value in (
        ("application_name", _this_process()),
        ("tcp_keepalives_idle", "60"),
        ("tcp_keepalives_interval", "10"),
        ("tcp_keepalives_count", "6"),
    ):
        connection.execute(text("SELECT set_config(:setting, :value, false)"), {"setting": setting, "value": value})
    if connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key):
        yield None
        return
    holder = text(
        "SELECT concat_ws(' since ', application_name,"
        " to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI \"UTC\"'))"
        " FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND datname = current_database()"
        " AND (classid::bigint << 32) | objid::bigint = :key"
    )
    yield connection.scalar(holder, key) or ""


LOCKS: dict[str, Lock] = {"sqlite": _file, "postgresql": _postgresql}


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
