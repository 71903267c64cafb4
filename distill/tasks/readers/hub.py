"""Reads data sets of the Hugging Face Hub with `datasets`."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from distill.tasks.task import TaskError
from foundation.errors import reason
from foundation.memory import limited_memory, physical_memory


def table(name: str, split: str, configuration: str | None = None, revision: str | None = None) -> Any:
    """One split, a `datasets.Dataset`; `name` may also be a folder of Parquet files that `datasets` can load.

    Raises:
        TaskError: the hub cannot be reached; the data set, configuration or split does not exist; a file of it is
            damaged; or loading it takes more than half of this machine's memory.
    """
    import datasets

    with _bounded(name, split):
        return datasets.load_dataset(name, configuration, split=split, revision=revision)


def files(rows: Any) -> list[str]:
    """The cache files of a split from `table`; their names contain the data set's revision."""
    return [file["filename"] for file in rows.cache_files]


def sources(
    name: str, splits: Iterable[str], configuration: str | None = None, revision: str | None = None
) -> list[Path | str]:
    """The cache files of several splits, for `Reader.sources`; arguments and errors are as for `table`."""
    return [file for split in splits for file in files(table(name, split, configuration, revision))]


def columns(
    name: str, split: str, configuration: str | None = None, revision: str | None = None
) -> dict[str, list[Any]]:
    """The columns of one split; arguments and errors are as for `table`."""
    rows = table(name, split, configuration, revision)
    with _bounded(name, split):
        return {column: rows[column][:] for column in rows.column_names}


@contextlib.contextmanager
def _bounded(name: str, split: str) -> Iterator[None]:
    """Turn what goes wrong while a split is loaded into a TaskError."""
    import datasets

    limit = physical_memory() // 2
    try:
        with limited_memory(limit):
            yield
    except (OSError, ValueError, RuntimeError, MemoryError, datasets.exceptions.DatasetsError) as error:
        wrapped = isinstance(error, datasets.exceptions.DatasetGenerationError)
        cause = (error.__cause__ if wrapped else None) or error  # what the reader of a file raised
        place = f"{name} ({split})"
        if isinstance(cause, MemoryError):
            problem = f"{place}: loading it takes more than {limit / 1e9:,.1f} GB, half of this machine's memory"
            raise TaskError(f"{problem}: a file is damaged, or the data set needs a larger machine") from None
        if wrapped:
            problem = f"{place}: a file of it cannot be read ({reason(cause)})"
            raise TaskError(f"{problem}; delete it, and what `datasets` made of it, and load it again") from None
        problem = f"{place} cannot be loaded from the hub; give the folder of its files ({reason(error)})"
        raise TaskError(problem) from None
