"""Measurements in processes of their own, which share neither memory nor settings with this one."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Result = TypeVar("Result")

# Forked processes would inherit the threads' state and the memory of this one.
_SPAWN = multiprocessing.get_context("spawn")


def in_new_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """What a function of a module returns when a new process calls it."""
    with ProcessPoolExecutor(1, _SPAWN) as pool:
        return pool.submit(function, *arguments).result()


def start_server(serve: Callable[..., None], *arguments: Any) -> Connection:
    """Start a process that runs `serve(connection, *arguments)`, and wait until it has sent something.

    The process should end when it receives None.

    Returns:
        the other end of the connection.
    """
    ours, theirs = multiprocessing.Pipe()
    _SPAWN.Process(target=serve, args=(theirs, *arguments), daemon=True).start()
    theirs.close()  # so that reading fails when the process has died, instead of waiting for ever
    ours.recv()
    return ours
