"""The process's standard streams."""

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator

# Redirections of several threads would restore each other's streams.
_LOCK = threading.Lock()


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """A context in which everything that is printed to stdout goes to stderr, also by libraries in C that print to the
    file descriptor themselves, so that stdout stays what the command prints: JSON, say.
    """
    with _LOCK:
        _flush()
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            _flush()
            os.dup2(kept, 1)
            os.close(kept)


def _flush() -> None:
    """Write what Python and C have buffered."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
