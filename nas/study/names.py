"""The names of the Optuna studies of a search."""

import optuna

from nas.study.folder import STAGES, Folder
from nas.study.storage import open_storage

# One study for each stage, and one for the confirmations of all stages.
CONFIRMATION = "confirmation"
STUDIES = (*(f"stage-{stage}" for stage in STAGES), CONFIRMATION)


def prefix_of(folder: Folder, storage: str | None = None) -> str:
    """What the names of a search's studies begin with: the name of its folder and a slash.

    The database in the folder belongs to the search alone. It may have been renamed with its folder, or be of version
    0.1, which had no such prefix, so there it is what the names of the studies in it begin with.

    Args:
        storage: the storage URL; by default that of the database in the folder, which must exist.

    Raises:
        StorageError: the storage cannot be opened, or is damaged.
    """
    if storage in (None, folder.storage):
        for name in open_storage(folder.storage).study_names():
            found, slash, last = name.rpartition("/")
            if last in STUDIES:
                return found + slash
    return f"{folder.path.resolve().name}/"


def existing_studies(folder: Folder, storage: str | None = None) -> dict[str, optuna.Study]:
    """The studies of a search by their names in `STUDIES`; the arguments are those of `prefix_of`.

    Raises:
        StorageError: the storage cannot be opened.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    prefix, opened = prefix_of(folder, storage), open_storage(storage or folder.storage)
    existing = set(opened.study_names())
    return {
        name: optuna.load_study(study_name=prefix + name, storage=opened)
        for name in STUDIES
        if prefix + name in existing
    }
