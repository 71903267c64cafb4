"""Opens the finished or unfinished Optuna studies of a folder, for commands that read them."""

from dataclasses import dataclass

import optuna

from nas.config.schema import ConfigError
from nas.study.folder import STAGES, Folder
from nas.study.names import CONFIRMATION, existing_studies


@dataclass(frozen=True, eq=False)
class Studies:
    """The Optuna studies of a folder: those of the stages that have begun, by stage, and that of the confirmations."""

    stages: dict[str, optuna.Study]
    confirmation: optuna.Study | None


def studies_of(folder: Folder, storage: str | None = None) -> Studies:
    """Open the studies of a folder.

    Args:
        storage: the storage URL; by default `study.db` in the folder.

    Raises:
        ConfigError: the folder is not one of a study, or no stage has begun.
        StorageError: the storage cannot be opened.
    """
    if not folder.config.exists():
        raise ConfigError(f"{folder.path} is not a study's folder: it has no config.toml")
    if storage is None and not (folder.path / "study.db").exists():
        raise ConfigError(f"{folder.path} has no study.db: if the study was searched with --storage, give that URL")
    studies = existing_studies(folder, storage)
    begun = {name: studies[f"stage-{name}"] for name in STAGES if f"stage-{name}" in studies}
    if not begun:
        place = "--storage" if storage else folder.path / "study.db"
        raise ConfigError(f"{place}: there is no study {folder.path.resolve().name}/stage-1, nor of another stage")
    return Studies(begun, studies.get(CONFIRMATION))
