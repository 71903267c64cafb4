"""Commands in this process, called as a shell calls them, and code in a process that cannot import this project."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

OURS = ("foundation", "search_spaces", "distill", "supernet", "nas", "train_final")
ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(main: Callable[[list[str]], int], *words: object) -> object:
    """Run a command; returns its exit status."""
    try:
        return main([str(word) for word in words])
    except SystemExit as exit_:  # of the parser
        return exit_.code


def refusal(capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int], *words: object) -> str:
    """The one line with which a command refuses its arguments."""
    capsys.readouterr()
    status = run(main, *words)
    message = capsys.readouterr().err
    assert status == 2, message
    assert re.match(r"[\w.]+: ", message) and message.count("\n") == 1
    return message


Refused = Callable[..., str]  # a command and its arguments -> that line


def output_elsewhere(code: str, *arguments: object, folder: Path, absent: tuple[str, ...] = ()) -> str:
    """What Python code prints in a process that runs in this folder and has neither this project nor the modules
    `absent`.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        [sys.executable, "-I", "-c", ABSENT.format(absent=(*OURS, *absent)) + code, *map(str, arguments)],
        cwd=folder,
        env=variables | {"HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "not supported" not in result.stderr
    return result.stdout
