"""The names of the Optuna studies of a search, and how commands open them to read."""

import optuna

from nas.config.schema import ConfigError
from nas.study.folder import STAGES, Folder
from nas.study.storage import StorageError, open_storage

# One study for each stage, one for the reference models, and one for the confirmations of all stages. Reference models
# exceed the budget, which not every view of the dashboard respects.
REFERENCE, CONFIRMATION = "reference", "confirmation"
# An attribute that trials of version 0.1 have, whose attributes had other names.
OF_EARLIER_VERSIONS = "in_box"
STUDIES = (*(f"stage-{stage}" for stage in STAGES), REFERENCE, CONFIRMATION)


def prefix_of(folder: Folder, storage: str | None = None) -> str:
    """What the names of a search's studies begin with: the name of its folder and a slash.

    The database in the folder belongs to the search alone. The folder may have been renamed, so there it is what the
    names of the studies in it begin with.

    Args:
        storage: the storage URL; by default that of the database in the folder.

    Raises:
        StorageError: the storage cannot be opened, or is damaged.
    """
    if storage in (None, folder.storage) and (folder.path / "study.db").exists():
        for name in optuna.get_all_study_names(open_storage(folder.storage)):
            prefix, slash, last = name.rpartition("/")
            if last in STUDIES:
                return prefix + slash
    return f"{folder.path.resolve().name}/"


def existing_studies(folder: Folder, storage: str | None = None) -> dict[str, optuna.Study]:
    """The studies of a search by their names in `STUDIES`; the arguments are those of `prefix_of`.

    Raises:
        StorageError: the storage cannot be opened.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    prefix, opened = prefix_of(folder, storage), open_storage(storage or folder.storage, create=False)
    existing = set(optuna.get_all_study_names(opened))
    studies = {
        name: optuna.load_study(study_name=prefix + name, storage=opened)
        for name in STUDIES
        if prefix + name in existing
    }
    trials = (trial for study in studies.values() for trial in study.get_trials(deepcopy=False)[:1])
    if any(OF_EARLIER_VERSIONS in trial.user_attrs for trial in trials):
        raise StorageError(f"{folder.path} has a study of version 0.1: search anew with another --study")
    return studies


def studies_of(folder: Folder, storage: str | None = None) -> dict[str, optuna.Study]:
    """The studies of a folder by their names in `STUDIES`, among them one of a stage.

    Args:
        storage: the storage URL; by default `study.db` in the folder.

    Raises:
        ConfigError: the folder is not one of a study, or no stage has begun.
        StorageError: the storage cannot be opened.
    """
    if not folder.config.exists():
        raise ConfigError(f"{folder.path} is not a study's folder: it has no config.toml")
    check_given(folder, storage)
    studies = existing_studies(folder, storage)
    if not any(f"stage-{stage}" in studies for stage in STAGES):
        place = "--storage" if storage else folder.path / "study.db"
        began = f"; the search began with --storage {folder.elsewhere}" if folder.elsewhere else ""
        raise ConfigError(
            f"{place}: there is no study {folder.path.resolve().name}/stage-1, nor of another stage{began}"
        )
    return studies


def check_given(folder: Folder, storage: str | None) -> None:
    """Raise ConfigError if the URL of the storage must be given, as the folder has no database. What a folder names is
    not opened by itself, as the folder may be somebody else's.
    """
    if storage is None and not (folder.path / "study.db").exists():
        known = f"it was searched with --storage {folder.elsewhere}: " if folder.elsewhere else ""
        raise ConfigError(
            f"{folder.path} has no study.db: {known or 'if the study was searched with --storage, '}give that URL"
        )
