"""Columns of data sets on the hub, through `datasets`."""

from typing import Any

from distill.tasks.task import TaskError


def table(name: str, split: str, configuration: str | None = None, revision: str | None = None) -> Any:
    """One split, a `datasets.Dataset`; `name` may also be a folder of parquet files that `datasets` can load.

    Raises:
        TaskError: the hub, the data set, the configuration or the split is not there.
    """
    import datasets

    try:
        return datasets.load_dataset(name, configuration, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fault = f"{name} ({split}) is not to be had from the hub; give the folder of its files: {reason}"
        raise TaskError(fault) from None


def files(rows: Any) -> list[str]:
    """The files in which `datasets` keeps a split, as of `table`; their names contain the data set's revision."""
    return [file["filename"] for file in rows.cache_files]


def columns(
    name: str, split: str, configuration: str | None = None, revision: str | None = None
) -> dict[str, list[Any]]:
    """The columns of one split, as of `table`. Raises TaskError."""
    found = table(name, split, configuration, revision)
    return {column: found[column][:] for column in found.column_names}
