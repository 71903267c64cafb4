"""Makes sure that Ctrl-C is not lost. Python drops a KeyboardInterrupt that is raised while a finaliser or a callback
from C code runs.
"""

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
    """In this block Ctrl-C raises KeyboardInterrupt and is also recorded for `check`; if Python drops the exception,
    nothing is printed.
    """
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
    """Raise KeyboardInterrupt if Ctrl-C was pressed in the block of `remembered`, even if the exception was dropped."""
    if _pressed.is_set():
        raise KeyboardInterrupt
