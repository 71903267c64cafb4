"""A study is run by one process at a time."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from nas.config.schema import ConfigError
from nas.study.folder import Folder, StudyInUse
from tests.nas.tiny_study import PROJECT

# Starts a program as libraries may, with all that a process gives to its children, and holds the lock until told.
HOLDER = """
import subprocess, sys
from pathlib import Path
from nas.study.folder import Folder, StudyInUse
folder, program = sys.argv[1:]
sys.stdin.readline()
try:
    with Folder(Path(folder)).lock():
        child = subprocess.Popen([*program.split()], close_fds=False)
        print("holds", child.pid, flush=True)
        sys.stdin.readline()
except StudyInUse as error:
    print(error, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def started(stack: ExitStack, folder: Folder, program: str = "true") -> subprocess.Popen[str]:
    """A process that takes the lock when it is sent a line, and releases it after another line."""
    command = [sys.executable, "-c", HOLDER, folder.path, program]
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


def test_one_of_several_that_start_together(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert not folder.is_running()
    with ExitStack() as stack:
        processes = [started(stack, folder) for _ in range(3)]
        for process in processes:
            tell(process)
        answers = {process: answer(process) for process in processes}
        (first,) = (process for process, text in answers.items() if text.startswith("holds "))
        told = [text for process, text in answers.items() if process is not first]
        assert all(f"study {folder.path} is already being run by " in text for text in told)
        with pytest.raises(StudyInUse) as caught, folder.lock():
            pass
        today = time.strftime("%Y-%m-%d", time.gmtime())
        assert f"being run by process {first.pid} on {socket.gethostname()} since {today} " in str(caught.value)
        assert str(caught.value).endswith(": wait until it has ended, or choose another --study")
        assert folder.is_running()
        with Folder(tmp_path_factory.mktemp("another")).lock():
            pass
        tell(first)
        assert first.wait(timeout=20) == 0
        assert not folder.is_running()
        with folder.lock():
            pass


def test_killed(folder: Folder) -> None:
    """Processes that the killed one had started keep running, but do not keep the lock."""
    with ExitStack() as stack:
        process = started(stack, folder, "sleep 300")
        tell(process)
        child = int(answer(process).removeprefix("holds "))
        stack.callback(os.kill, child, signal.SIGKILL)
        process.kill()
        process.wait()
        with folder.lock():
            os.kill(child, 0)


def test_given_back_after_an_error(folder: Folder) -> None:
    with pytest.raises(ZeroDivisionError), folder.lock():
        raise ZeroDivisionError
    with folder.lock(), pytest.raises(StudyInUse), folder.lock():
        pass


def test_a_folder_has_one_lock_however_it_is_spelled(folder: Folder) -> None:
    (folder.path / "link").symlink_to(folder.path)
    with folder.lock(), pytest.raises(StudyInUse), Folder(folder.path / "link").lock():
        pass


def test_a_lock_that_cannot_be_opened(folder: Folder) -> None:
    (folder.path / "lock").mkdir()
    for use in (lambda: folder.lock().__enter__(), folder.is_running):
        with pytest.raises(ConfigError, match=r"lock cannot be opened \(Is a directory\): remove it if no search"):
            use()
