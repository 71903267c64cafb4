"""The readers of tasks: modules with `TASKS`, the names that each knows, `load(name, data)`, which reads their rows,
and `sources(name, data)`, which tells without reading them what they are read from.
"""

from pathlib import Path
from typing import Any

from distill.tasks.readers import conll, embedded, glue, squad
from distill.tasks.task import TaskData, TaskError
from search_spaces.errors import did_you_mean

READERS: tuple[Any, ...] = (embedded, glue, squad, conll)


def reader_of(name: str) -> Any:
    """The module that reads the task of this name.

    Raises:
        TaskError: there is no such task.
    """
    known = [task for reader in READERS for task in reader.TASKS]
    if name not in known:
        raise TaskError(f"unknown task {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    return next(reader for reader in READERS if name in reader.TASKS)


def load_task(name: str, data: Path | None = None) -> TaskData[Any]:
    """A task by its name: of the text of this installation, or of a public data set, from the hub or from its official
    files in the folder `data`.

    Raises:
        TaskError: there is no such task, or its data cannot be read.
    """
    task: TaskData[Any] = reader_of(name).load(name, data)
    return task
