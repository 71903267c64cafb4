"""The trainings of a study: on which rows, for how long, and what the objective and the teacher are there."""

import math
from dataclasses import dataclass

import numpy as np

from distill.objectives import OBJECTIVES, Settings
from distill.tasks.encoding import Encoded, take
from distill.training.recipe import Recipe
from nas.config.schema import ConfigError, RecipeTable, StudyConfig
from nas.preparation.data import TaskFolders

# Tables of the configuration whose rows are text without labels; that of the warm-up says so itself.
ON_TEXT = ("candidate_pretrain", "sharing_pretrain", "pretrain")
# Trainings of a candidate, and of what is searched in the end, one after the other.
CANDIDATE, FINAL = ("candidate_pretrain", "candidate"), ("pretrain", "final")


@dataclass(frozen=True, eq=False)
class TrainingPhase:
    """One training by the study's objective.

    Attributes:
        table: of the configuration.
        settings: of the objective.
        raw: the teacher is the one from before its fine-tuning.
    """

    table: str
    rows: Encoded
    recipe: Recipe
    settings: Settings
    raw: bool = False


def table_of(config: StudyConfig, name: str) -> RecipeTable | None:
    """The table of this name, where there is one that trains."""
    table: RecipeTable | None = getattr(config, name)
    return None if table is None or table.steps == 0 else table


def on_text(config: StudyConfig, name: str) -> bool:
    """Whether the table of this name is of a training on text."""
    return name in ON_TEXT or (name == "warmup" and config.warmup.source == "text")


def raw(config: StudyConfig, name: str) -> bool:
    """Whether the raw teacher teaches in the training of this name."""
    return on_text(config, name) and config.text_teacher == "raw"


def settings_of(config: StudyConfig, name: str) -> Settings:
    """The objective's settings in the training of this name: on text, those for rows without labels, whose predictions
    are not trained either (EfficientBERT, section 4.3: gamma = 0).

    Raises:
        ConfigError: the objective cannot learn from text.
    """
    settings = config.objective.settings()
    if not on_text(config, name):
        return settings
    try:
        return settings | OBJECTIVES[config.objective.name].settings_without_labels()
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def training_phase(config: StudyConfig, name: str, folders: TaskFolders) -> TrainingPhase | None:
    """The training that the table of this name describes, on the rows in these folders; None where there is none.

    Raises:
        ConfigError: the objective learns nothing from text.
    """
    table = table_of(config, name)
    if table is None:
        return None
    rows = portion(folders.rows("text" if on_text(config, name) else "train"), table.share, config.seed)
    return TrainingPhase(name, rows, table.build(len(rows)), settings_of(config, name), raw(config, name))


def training_phases(config: StudyConfig, names: tuple[str, ...], folders: TaskFolders) -> tuple[TrainingPhase, ...]:
    """Those of these trainings that there are."""
    return tuple(found for found in (training_phase(config, name, folders) for name in names) if found)


def portion(rows: Encoded, share: float, seed: int) -> Encoded:
    """A share of the rows, drawn at random, in their order."""
    if share == 1:
        return rows
    chosen = np.random.default_rng([seed, 2]).permutation(len(rows))[: math.ceil(share * len(rows))]
    return take(rows, np.sort(chosen))
