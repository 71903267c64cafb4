"""A study is run by one process at a time."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from optuna.exceptions import StorageInternalError

from nas.study import ledger
from nas.study.lock import StudyInUse, sole_driver
from nas.study.storage import StorageError, StorageLostError, reporting_lost_storage, sqlite_url
from tests.nas.study import postgres
from tests.nas.study.postgres import Server
from tests.nas.tiny_study import PROJECT

# Starts a program as libraries may, with all that a process gives to its children, and holds the lock until told.
HOLDER = """
import subprocess, sys
from nas.study.lock import StudyInUse, sole_driver
url, name, program = sys.argv[1:]
sys.stdin.readline()
try:
    with sole_driver(url, name):
        child = subprocess.Popen([*program.split()], close_fds=False)
        print("holds", child.pid, flush=True)
        sys.stdin.readline()
except StudyInUse as error:
    print(error, flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres.running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "study.db")
    server: Server = request.getfixturevalue("server")
    return server.url


def started(stack: ExitStack, url: str, name: str, program: str = "true") -> subprocess.Popen[str]:
    """A process that takes the lock when it is sent a line, and releases it after another line."""
    command = [sys.executable, "-c", HOLDER, url, name, program]
    process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_of_several_that_start_together(url: str) -> None:
    with ExitStack() as stack:
        processes = [started(stack, url, "together") for _ in range(3)]
        for process in processes:
            tell(process)
        answers = {process: answer(process) for process in processes}
        (first,) = (process for process, text in answers.items() if text.startswith("holds "))
        told = [text for process, text in answers.items() if process is not first]
        assert all("study 'together' is already being run by " in text for text in told)
        with pytest.raises(StudyInUse) as caught, sole_driver(url, "together"):
            pass
        today = time.strftime("%Y-%m-%d", time.gmtime())
        assert f"being run by process {first.pid} on {socket.gethostname()} since {today} " in str(caught.value)
        assert str(caught.value).endswith(": wait until it has ended, or choose another --study")
        with sole_driver(url, "another"):
            pass
        tell(first)
        assert first.wait(timeout=20) == 0
        with sole_driver(url, "together"):
            pass


def test_killed(url: str) -> None:
    """Processes that the killed one had started keep running, but do not keep the lock."""
    with ExitStack() as stack:
        process = started(stack, url, "killed", "sleep 300")
        tell(process)
        child = int(answer(process).removeprefix("holds "))
        stack.callback(os.kill, child, signal.SIGKILL)
        process.kill()
        process.wait()
        end = time.monotonic() + (0 if url.startswith("sqlite") else 10)  # a server sees it a moment later
        while True:
            try:
                with sole_driver(url, "killed"):
                    break
            except StudyInUse:
                assert time.monotonic() < end
                time.sleep(0.01)
        os.kill(child, 0)


def test_given_back_after_an_error(url: str) -> None:
    with pytest.raises(ZeroDivisionError), sole_driver(url, "error"):
        raise ZeroDivisionError
    with sole_driver(url, "error"), pytest.raises(StudyInUse), sole_driver(url, "error"):
        pass


def test_names_are_any_text(url: str, tmp_path: Path) -> None:
    names = ["", "a", "a/b", "../a", "a b", "ä", "100 %", "a:b", "{}"]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(sole_driver(url, name))
        for name in names:
            with pytest.raises(StudyInUse), sole_driver(url, name):
                pass
    assert {path.parent for path in tmp_path.rglob("*")} <= {tmp_path}


def test_a_file_has_one_lock_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    with sole_driver(sqlite_url(tmp_path / "real" / "study.db"), "s"):
        for url in (
            "sqlite:///real/study.db",
            "sqlite:///real/../link/study.db",
            f"sqlite:///{tmp_path}/link/study.db",
            f"sqlite+pysqlite:///{tmp_path}/real/study.db",
            f"sqlite:///file:{tmp_path}/real/study.db?uri=true",
        ):
            with pytest.raises(StudyInUse), sole_driver(url, "s"):
                pass
        with sole_driver("sqlite:///real/other.db", "s"):
            pass


def test_databases_of_one_server_are_apart(server: Server) -> None:
    server.execute("CREATE DATABASE other")
    other = server.url.replace("/postgres?", "/other?")
    with ExitStack() as stack:
        for url in (server.url, other):
            stack.enter_context(sole_driver(url, "s"))
        # Each of them is locked all the same.
        for url in (server.url, other):
            with pytest.raises(StudyInUse), sole_driver(url, "s"):
                pass


def test_a_server_that_restarts(server: Server) -> None:
    """The lock is lost without an error. Its holder cannot continue, because Optuna's connections are lost, too."""
    study = ledger.open_study(server.url, "restarted/stage-1")
    with sole_driver(server.url, "restarted"):
        study.ask()
        server.stop()
        server.start()
        with sole_driver(server.url, "restarted"):
            pass
        with pytest.raises(StorageInternalError):
            study.ask()
        reason = r"failed \(the connection to the storage was lost\); once it works again"
        with pytest.raises(StorageError, match=reason), reporting_lost_storage(server.url):
            study.ask()
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def take_lock(url: str) -> None:
    with sole_driver(url, "s"):
        pass


def open_study(url: str) -> None:
    ledger.open_study(url, "s/stage-1")


@pytest.mark.parametrize("connect", [take_lock, open_study])
def test_a_server_that_is_away(connect: Callable[[str], None], server: Server, tmp_path: Path) -> None:
    """A search that wants to connect to it can wait for it, but not for a file that cannot be opened."""
    nowhere = sqlite_url(tmp_path / "no" / "file")
    with pytest.raises(StorageError) as caught, reporting_lost_storage(nowhere):
        connect(nowhere)
    assert not isinstance(caught.value, StorageLostError)
    server.stop()
    try:
        with pytest.raises(StorageLostError, match=r"--resume continues$"), reporting_lost_storage(server.url):
            connect(server.url)
    finally:
        server.start()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "give a file, as in sqlite:///study.db"),
        ("sqlite:///:memory:", "give a file"),
        ("sqlite:////no/such/folder/study.db", "unable to open database file"),
        ("oracle://u:secret@h/d", "the supported databases are sqlite and postgresql"),
        ("mysql+pymysql://u:secret@h/d", "the supported databases are sqlite and postgresql"),
        ("postgres://u:secret@h/d", "the supported databases are sqlite and postgresql"),
        ("nonsense", "Could not parse"),
        ("", "Could not parse"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/d", "Connection refused"),
        ("postgresql://u@h:port/d", "invalid literal"),
    ],
)
def test_storages_without_a_lock(url: str, message: str) -> None:
    with pytest.raises(StorageError, match="cannot open the storage") as caught, sole_driver(url, "s"):
        pass
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with (
        pytest.raises(StorageError, match=r"install its driver .*psycopg") as caught,
        sole_driver("postgresql://h/d", "s"),
    ):
        pass
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "study.db.s.lock").mkdir()
    with (
        pytest.raises(StorageError, match=r"Is a directory: .*study\.db\.s\.lock"),
        sole_driver(sqlite_url(tmp_path / "study.db"), "s"),
    ):
        pass
