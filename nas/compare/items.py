"""What is compared: studies, checkpoints and architectures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.study.folder import Folder
from search_spaces.architecture import Architecture
from search_spaces.errors import UserError
from search_spaces.published import load


class CompareError(UserError):
    """The given things cannot be compared."""


@dataclass(frozen=True, eq=False)
class Item:
    """What is compared.

    Attributes:
        config: of the study or the checkpoint; None for an architecture.
        rows: the contributions of the rows to the score, by the seed of the training: of the search split for a study
            and for what it has confirmed, of the dev split for a checkpoint.
        checkpoint: the folder, for a checkpoint.
    """

    name: str
    architecture: Architecture
    config: StudyConfig | None = None
    rows: Mapping[int, np.ndarray] = field(default_factory=dict)
    checkpoint: Path | None = None
    study: Path | None = None


def item_of(text: str) -> Item:
    """A study, a checkpoint, an architecture file or a published architecture, without rows.

    Raises:
        UserError: it is none of these.
    """
    path = Path(text)
    if not path.is_dir():
        return Item(text, load(text))
    folder = Folder(path)
    if (path / "model.safetensors").exists() or (path / "config.json").exists():
        for needed in (folder.architecture, folder.config):
            if not needed.exists():
                raise CompareError(f"{path} is not a checkpoint of train_final.py: it has no {needed.name}")
        config = load_config(str(folder.config))
        return Item(text, Architecture.load(folder.architecture), config, checkpoint=path)
    if not folder.config.exists():
        raise CompareError(f"{path} is neither a study's folder nor a checkpoint: it has no config.toml")
    if not folder.architecture.exists():
        raise CompareError(f"{path} has no architecture.json: no stage has ended; nas.pick writes that of a trial")
    return Item(text, Architecture.load(folder.architecture), load_config(str(folder.config)), study=path)
