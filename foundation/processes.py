"""Work that is divided among processes of this machine."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from joblib import Parallel, cpu_count, delayed, parallel_config

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """`map`, in order, in at most `processes` processes, and at most as many as there are processors.

    The processes do not import the caller's script, so it needs no `if __name__ == "__main__"`. They end a second after
    the last item. With one, everything runs in the caller's process; otherwise function, items and results must be
    picklable.
    """
    with parallel_config("loky", n_jobs=min(processes, cpu_count()), idle_worker_timeout=1):
        yield from Parallel(return_as="generator")(delayed(function)(item) for item in items)
