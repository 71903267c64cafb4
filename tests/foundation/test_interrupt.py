"""Ctrl-C that is pressed again while what the first one set off is cleaning up."""

import contextlib
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foundation import interrupt


def test_the_second_of_two_presses_does_not_interrupt_the_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "PAUSE", math.inf)
    cleaned = False
    with interrupt.recording(), pytest.raises(KeyboardInterrupt):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            cleaned = True
    assert cleaned
    monkeypatch.setattr(interrupt, "PAUSE", 0.0)
    with interrupt.recording():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_what_must_not_be_cut_short() -> None:
    with interrupt.recording():
        with interrupt.ignored():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


class Interrupting:
    """An object in whose finalizer Ctrl-C arrives."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_finalizer_is_remembered_and_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    usual = shown.append
    monkeypatch.setattr(sys, "unraisablehook", usual)
    with interrupt.recording():
        victim = Interrupting()
        del victim
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    assert sys.unraisablehook == usual
    assert shown == []


def test_sigterm_is_as_ctrl_c() -> None:
    usual = signal.getsignal(signal.SIGTERM)
    with interrupt.recording():
        with interrupt.kept():  # while a library, such as Ray, lets it end the process
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is usual


def test_ctrl_c_waits_for_the_end_of_a_transaction() -> None:
    done = []

    @interrupt.deferred()
    def write() -> None:
        with interrupt.deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")

    with interrupt.recording(), pytest.raises(KeyboardInterrupt):
        write()
    assert done == ["inner", "outer"]


def test_ctrl_c_is_remembered_where_it_is_swallowed() -> None:
    usual = signal.getsignal(signal.SIGINT)
    with interrupt.recording():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    assert signal.getsignal(signal.SIGINT) is usual
    with interrupt.recording():
        interrupt.check()


PRESSED_AT_THE_END = """
import atexit, signal, sys
from distill.cli import interruptible

def command():
    signal.raise_signal(signal.SIGINT)

atexit.register(signal.raise_signal, signal.SIGINT)
sys.exit(interruptible("nas.some", command, "start it again"))
"""


def test_ctrl_c_while_an_interrupted_process_exits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRESSED_AT_THE_END], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "nas.some: interrupted; start it again\n")
