"""Work that is divided among processes of this machine."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from joblib import Parallel, cpu_count, delayed, parallel_config

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """`map`, in order, in at most `processes` processes, and at most as many as there are processors.

    The processes do not import the caller's script, which need not guard its main part, and end a second after the last
    item. With one, all is done in the caller's process; with several the items must be picklable.
    """
    with parallel_config("loky", n_jobs=min(processes, cpu_count()), idle_worker_timeout=1):
        yield from Parallel(return_as="generator")(delayed(function)(item) for item in items)
