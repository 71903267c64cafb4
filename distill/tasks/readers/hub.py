"""Reading of data sets on the hub with `datasets`."""

from typing import Any

from distill.tasks.task import TaskError
from search_spaces.errors import reason


def table(name: str, split: str, configuration: str | None = None, revision: str | None = None) -> Any:
    """One split, a `datasets.Dataset`; `name` may also be a folder of parquet files that `datasets` can load.

    Raises:
        TaskError: the hub cannot be reached, or the data set, configuration or split does not exist.
    """
    import datasets

    try:
        return datasets.load_dataset(name, configuration, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        problem = f"{name} ({split}) cannot be loaded from the hub; give the folder of its files ({reason(error)})"
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
