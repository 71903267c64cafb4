"""Records Ctrl-C, because Python drops a KeyboardInterrupt that is raised in a finalizer or a callback from C code.

What is said of Ctrl-C holds for SIGTERM, too, by which `kill` and job schedulers end a process.
"""

import atexit
import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# After Ctrl-C this many seconds pass before it raises again, as many commands are sent it twice: what the first one set
# off is left to clean up.
PAUSE = 1.0

_pressed = threading.Event()
# How many blocks of `deferred` are running, one inside the other.
_deferring = 0


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """In this block, Ctrl-C raises KeyboardInterrupt and is recorded for `check`. If Python drops the exception,
    nothing is printed. Afterwards the process does not notice Ctrl-C while it exits: what it had to do is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -math.inf

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal last
        _pressed.set()
        now, before = time.monotonic(), last
        if not _deferring and now - before >= PAUSE:
            last = now
            raise KeyboardInterrupt

    def ignore_interrupt(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            previous_hook(unraisable)

    _pressed.clear()
    previous_handlers = {number: signal.signal(number, handler) for number in _SIGNALS}
    previous_hook = sys.unraisablehook
    sys.unraisablehook = ignore_interrupt
    try:
        yield
    finally:
        _pressed.clear()
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)
        sys.unraisablehook = previous_hook
        atexit.unregister(_ignore)
        atexit.register(_ignore)


def _ignore() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """In this block a library may set handlers of its own, which are replaced by those of before at its end."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """In this block Ctrl-C does nothing."""
    global _deferring
    _deferring += 1
    try:
        yield
    finally:
        _deferring -= 1


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """In this block, or in a function with this decorator, Ctrl-C is only recorded; KeyboardInterrupt is raised at its
    end. An exception in the middle of a transaction could leave the database locked.
    """
    with ignored():
        yield
    if not _deferring:
        check()


def check() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed in the block of `recording`, even if the exception was dropped."""
    if _pressed.is_set():
        raise KeyboardInterrupt
