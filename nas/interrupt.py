"""Records Ctrl-C, because Python drops a KeyboardInterrupt that is raised in a finaliser or a callback from C code."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_pressed = threading.Event()
# How many blocks of `deferred` are running, one inside the other.
_deferring = 0


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """In this block, Ctrl-C raises KeyboardInterrupt and is recorded for `check`. If Python drops the exception,
    nothing is printed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        _pressed.set()
        if not _deferring:
            raise KeyboardInterrupt

    def ignore_interrupt(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            previous_hook(unraisable)

    _pressed.clear()
    previous_handler, previous_hook = signal.signal(signal.SIGINT, handler), sys.unraisablehook
    sys.unraisablehook = ignore_interrupt
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
        sys.unraisablehook = previous_hook


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """In this block, or in a function with this decorator, Ctrl-C is only recorded; KeyboardInterrupt is raised at its
    end. An exception in the middle of a transaction could leave the database locked.
    """
    global _deferring
    _deferring += 1
    try:
        yield
    finally:
        _deferring -= 1
    if not _deferring:
        check()


def check() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed in the block of `recording`, even if the exception was dropped."""
    if _pressed.is_set():
        raise KeyboardInterrupt
