"""What all commands share: they speak under the name that the user called, and end with the right status."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from distill.cli import DONE, USER_ERROR, Parser, guard
from foundation import __version__
from foundation.errors import UserError
from foundation.files import LOCK_FILE, SCRATCH_PREFIX

CALLED = {"/somewhere/bin/ffn-nas": "ffn-nas", "/checkout/nas/search/__main__.py": "nas.search"}


def mistake() -> int:
    raise UserError("steps: 0 is\nnot positive")


def fault() -> int:
    raise ValueError("not the user's")


@pytest.mark.parametrize(("argument", "name"), CALLED.items())
def test_names(argument: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [argument])
    parser = Parser(prog="nas.search")
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["--unknown"])
    assert stop.value.code == USER_ERROR
    assert capsys.readouterr().err == f"{name}: unrecognized arguments: --unknown (see --help)\n"
    assert guard("nas.search", mistake) == USER_ERROR
    assert capsys.readouterr().err == f"{name}: steps: 0 is not positive\n"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        Parser(prog="distill").parse_args(["--version"])
    assert stop.value.code == DONE
    assert capsys.readouterr().out == f"ffn-nas {__version__}\n"


def test_a_fault_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="not the user's"):
        guard("distill", fault)


def test_temporary_files_of_killed_commands_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{SCRATCH_PREFIX}left"
    left.mkdir()
    (left / LOCK_FILE).touch()
    assert guard("distill", lambda: USER_ERROR if left.exists() else DONE) == DONE


def test_without_a_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk, which does not stop commands that only read."""

    def unusable() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", unusable)
    assert guard("distill", lambda: DONE) == DONE


def test_what_a_terminal_cannot_show_is_replaced() -> None:
    code = "from distill.cli import Parser; Parser('x').parse_args([]); print('größe \\u2212 \\udcff')"
    variables = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])}
    shown = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, check=True)
    assert shown.stdout == b"gr??e ? ?\n"


@pytest.mark.parametrize(
    "code",
    [
        "guard('x', lambda: print('a' * 100_000) or DONE)",
        "guard('x', lambda: print('a') or DONE)",
        "parser.parse_args(['--help'])",
        "parser.parse_args(['--name', '?'])",
    ],
)
def test_a_reader_that_has_left_is_no_error(code: str) -> None:
    """As `head`, once it has the lines that it wants."""
    parser = "parser = Parser('x', description='a' * 100_000)"
    option = "parser.add_argument('--name', action=listing(lambda: {'a' * 100_000: ''}))"
    imports = "from distill.choices import listing; from distill.cli import DONE, Parser, guard"
    lines = "; ".join([imports, parser, option, "input()", code])
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", lines], env=variables, stdin=-1, stdout=-1, stderr=-1) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert (process.wait(), process.stderr.read()) == (DONE, b"")
