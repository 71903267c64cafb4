"""Readers of data sets. A task is read by the first of `READERS` that has its name.

All functions here raise TaskError, with the place, for data that is missing, damaged or of another format.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from distill.tasks.readers import conll, embedded, glue, squad
from distill.tasks.task import TaskData, TaskError
from foundation.errors import did_you_mean


class Reader(Protocol):
    """The interface of a reader: a module, or another object, with these attributes. To add one, append it to
    `READERS`.
    """

    @property
    def TASKS(self) -> Collection[str]:
        """The names of the tasks that it can read."""
        ...

    def task_type(self, name: str) -> str:
        """The name of a task's type in `distill.tasks.types.TASK_TYPES`, before its rows are read."""
        ...

    def load(self, name: str, data: Path | None = None) -> TaskData[Any]:
        """The task with its rows: from its official files in the folder `data`, else from the hub.

        Raises:
            TaskError: the data cannot be read.
        """
        ...

    def sources(self, name: str, data: Path | None = None) -> Sequence[Path | str]:
        """The sources of `load`, determined without reading rows: files, or strings that change whenever the rows
        change.

        Raises:
            TaskError: the data does not exist.
        """
        ...


READERS: list[Reader] = [embedded, glue, squad, conll]


def reader_of(name: str) -> Reader:
    """The reader of the task of this name.

    Raises:
        TaskError: there is no such task.
    """
    for reader in READERS:
        if name in reader.TASKS:
            return reader
    known = [task for reader in READERS for task in reader.TASKS]
    raise TaskError(f"unknown task {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")


def load_task(name: str, data: Path | None = None) -> TaskData[Any]:
    """Load a task by its name: on the text of this installation, or on a public data set, from the hub or from its
    official files in the folder `data`.

    Raises:
        TaskError: there is no such task, or its data cannot be read.
    """
    return reader_of(name).load(name, data)
