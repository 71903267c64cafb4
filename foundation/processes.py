"""Work that is divided among processes of this machine."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from joblib import Parallel, delayed, parallel_config

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """`map` in several processes, in order. They do not import the caller's script, which need not guard its main part,
    and end a second after the last item.
    """
    with parallel_config("loky", n_jobs=processes, idle_worker_timeout=1):
        yield from Parallel(return_as="generator")(delayed(function)(item) for item in items)
