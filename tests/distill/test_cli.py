"""What all commands share: they speak under the name that the user called, and end with the right status."""

import sys
from collections.abc import Callable

import pytest

from distill.cli import DONE, USER_ERROR, Parser, guard
from search_spaces import __version__
from search_spaces.errors import UserError

CALLED = {"/somewhere/bin/ffn-nas": "ffn-nas", "/checkout/nas/search.py": "nas.search"}


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


@pytest.mark.parametrize(("command", "outcome"), [(lambda: DONE, DONE), (lambda: 1, 1)])
def test_a_status_is_returned(command: Callable[[], int], outcome: int) -> None:
    assert guard("distill", command) == outcome


def test_a_fault_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="not the user's"):
        guard("distill", fault)
