"""Columns of data sets on the hub, through `datasets`."""

from typing import Any

from distill.tasks import TaskError


def columns(
    name: str, split: str, configuration: str | None = None, revision: str | None = None
) -> dict[str, list[Any]]:
    """The columns of one split; `name` may also be a folder of parquet files that `datasets` can load.

    Raises:
        TaskError: the hub, the data set, the configuration or the split is not there.
    """
    import datasets

    try:
        table = datasets.load_dataset(name, configuration, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fault = f"{name} ({split}) is not to be had from the hub; give the folder of its files: {reason}"
        raise TaskError(fault) from None
    return {column: table[column][:] for column in table.column_names}
