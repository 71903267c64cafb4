"""Ctrl-C that is not lost, as a KeyboardInterrupt is that arrives while a finaliser or a callback of C code runs."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_pressed = threading.Event()


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """While this lasts, Ctrl-C is remembered for `check` as well as raised."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        _pressed.set()
        raise KeyboardInterrupt

    _pressed.clear()
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def check() -> None:
    """Raises KeyboardInterrupt if Ctrl-C was pressed, whatever became of it."""
    if _pressed.is_set():
        raise KeyboardInterrupt
