"""Reading of data sets on the hub with `datasets`."""

from typing import Any

from distill.memory import limited_memory, physical_memory
from distill.tasks.task import TaskError
from search_spaces.errors import reason


def table(name: str, split: str, configuration: str | None = None, revision: str | None = None) -> Any:
    """One split, a `datasets.Dataset`; `name` may also be a folder of parquet files that `datasets` can load.

    Raises:
        TaskError: the hub cannot be reached, the data set, configuration or split does not exist, or a file of it is so
            damaged that reading it takes more than half of the memory.
    """
    import datasets

    limit = physical_memory() // 2
    try:
        with limited_memory(limit):
            return datasets.load_dataset(name, configuration, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, MemoryError, datasets.exceptions.DatasetsError) as error:
        generating = isinstance(error, datasets.exceptions.DatasetGenerationError)
        cause = (error.__cause__ if generating else None) or error
        if isinstance(cause, MemoryError):
            problem = f"reading it takes more than {limit / 1e9:,.1f} GB, half of this machine's memory; is it damaged?"
            raise TaskError(f"{name} ({split}): {problem}") from None
        problem = f"{name} ({split}) cannot be loaded from the hub; give the folder of its files ({reason(cause)})"
        raise TaskError(problem) from None


def files(rows: Any) -> list[str]:
    """The cache files of a split from `table`; their names contain the data set's revision."""
    return [file["filename"] for file in rows.cache_files]


def columns(
    name: str, split: str, configuration: str | None = None, revision: str | None = None
) -> dict[str, list[Any]]:
    """The columns of one split; arguments and errors are as for `table`."""
    found = table(name, split, configuration, revision)
    return {column: found[column][:] for column in found.column_names}
