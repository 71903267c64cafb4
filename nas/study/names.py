"""The names of the Optuna studies of a search."""

import optuna

from nas.study.folder import STAGES
from nas.study.storage import open_storage

# One study for each stage, and one for the confirmations of all stages.
CONFIRMATION = "confirmation"
STUDIES = (*(f"stage-{stage}" for stage in STAGES), CONFIRMATION)


def prefix_of(url: str, search: str, shared: bool) -> str:
    """What the names of a search's studies begin with: its own name and a slash.

    A database that belongs to the search alone (not `shared`) may have been renamed with its folder, or be of version
    0.1, which had no such prefix; there it is what the names of the studies in it begin with.

    Raises:
        StorageError: the storage cannot be opened.
    """
    if not shared:
        for name in optuna.get_all_study_names(open_storage(url)):
            found, slash, last = name.rpartition("/")
            if last in STUDIES:
                return found + slash
    return f"{search}/"


def existing_studies(url: str, search: str, shared: bool) -> dict[str, optuna.Study]:
    """The studies of a search in the storage `url`, by their names in `STUDIES`.

    Args:
        search, shared: see `prefix_of`.

    Raises:
        StorageError: the storage cannot be opened.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    prefix, storage = prefix_of(url, search, shared), open_storage(url)
    existing = set(optuna.get_all_study_names(storage))
    return {
        name: optuna.load_study(study_name=prefix + name, storage=storage)
        for name in STUDIES
        if prefix + name in existing
    }
