"""Ctrl-C that is not lost, as a KeyboardInterrupt is that arrives while a finaliser or a callback of C code runs."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_pressed = threading.Event()


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """While this lasts, Ctrl-C is remembered for `check` as well as raised, and nothing is printed where it is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        _pressed.set()
        raise KeyboardInterrupt

    def lost(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            show(unraisable)

    _pressed.clear()
    before, show = signal.signal(signal.SIGINT, handler), sys.unraisablehook
    sys.unraisablehook = lost
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = show


def check() -> None:
    """Raises KeyboardInterrupt if Ctrl-C was pressed, whatever became of it."""
    if _pressed.is_set():
        raise KeyboardInterrupt
