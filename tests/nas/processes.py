"""The processes of a search, for tests that pause or kill them."""

import contextlib
import time
from collections.abc import Callable, Iterable

import psutil

WORKER = "ray::ImplicitFunc"  # the title of a worker
TRAINING = f"{WORKER}.train"  # its title while it evaluates a candidate


class Killed(BaseException):
    """Stands for the death of the process."""


def family(*pids: int) -> list[psutil.Process]:
    """These processes, each followed by all that are below it. They are there at least until they are waited for."""
    parents = map(psutil.Process, pids)
    return [one for parent in parents for one in (parent, *parent.children(recursive=True))]


def workers(processes: Iterable[psutil.Process], title: str = WORKER) -> list[psutil.Process]:
    """Those of the processes that are workers."""
    found = []
    for one in processes:
        with contextlib.suppress(psutil.Error):  # it has ended in the meantime
            if "".join(one.cmdline()).startswith(title):
                found.append(one)
    return found


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def still_running(processes: Iterable[psutil.Process], timeout: float) -> list[psutil.Process]:
    """The processes that are still there after this many seconds, without those that only wait to be reaped."""
    _, left = psutil.wait_procs(processes, timeout=timeout)
    return [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def pause_both_workers(running: Callable[[], int], *above: int) -> bool:
    """Pause the two workers of a search; returns whether both are in the middle of a trial.

    A worker found alone stays paused until the next call, as it might run all trials before the other one has started.

    Args:
        running: counts the trials that are running according to the study.
        above: the search, or the Ray nodes.
    """
    everyone = workers(family(*above))
    training = workers(everyone, TRAINING)
    for one in everyone:
        if one in training:
            one.suspend()
        else:
            one.resume()
    if len(training) < 2:
        return False
    time.sleep(0.5)  # the search writes down what they have reported
    if running() == 2:
        return True
    for one in training:
        one.resume()
    return False
