"""The training phases of a study: their rows, their recipes, their settings of the objective, and their teachers."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distill.objectives import OBJECTIVES, Settings
from distill.tasks.classes import weighted
from distill.tasks.encoding import Encoded, joined, take
from distill.training.loop import Diverged
from distill.training.recipe import Recipe
from nas.config.recipes import PretrainTable, RecipeTable
from nas.config.schema import ConfigError, StudyConfig, reporting
from nas.preparation.data import TaskFolders

# The tables of training phases on text without labels. `warmup` is one of them if its `source` is "text".
ON_TEXT = ("candidate_pretrain", "one_shot_warmup", "one_shot_pretrain", "pretrain")
# Those of them that train the one-shot supernet, in order.
ONE_SHOT_ON_TEXT = ("one_shot_warmup", "one_shot_pretrain")
# The tables of the training phases of a candidate, and of those of the final training, in order.
CANDIDATE, FINAL = ("candidate_pretrain", "candidate"), ("pretrain", "final")


@dataclass(frozen=True, eq=False)
class TrainingPhase:
    """A training with the study's objective.

    Attributes:
        table: the name of the phase's table in the configuration.
        settings: the settings of the objective.
        raw_teacher: whether the teacher is the raw one, before fine-tuning.
        assistant: the model that is the teacher instead; None: there is none.
    """

    table: str
    rows: Encoded
    recipe: Recipe
    settings: Settings
    raw_teacher: bool = False
    assistant: str | None = None


def table_of(config: StudyConfig, name: str) -> RecipeTable | None:
    """The table of this name in the configuration; None if it is missing or has 0 steps."""
    table: RecipeTable | None = getattr(config, name)
    return None if table is None or table.steps == 0 else table


def on_text(config: StudyConfig, name: str) -> bool:
    """Whether the phase of this table trains on text without labels."""
    return name in ON_TEXT or (name == "warmup" and config.warmup.source == "text")


def learns_from_text(config: StudyConfig, name: str) -> bool:
    """Whether there is a training of this table on text without labels, from which the objective can learn."""
    if table_of(config, name) is None or not on_text(config, name):
        return False
    try:
        settings_of(config, name)
    except ConfigError:
        return False
    return True


def has_raw_teacher(config: StudyConfig, name: str) -> bool:
    """Whether the phase of this table learns from the raw teacher, before fine-tuning."""
    return on_text(config, name) and config.text_teacher == "raw"


def settings_of(config: StudyConfig, name: str) -> Settings:
    """The settings of the objective in the phase of this table. On text they are those for rows without labels, on
    which predictions are not trained either (EfficientBERT, section 4.3: gamma = 0).

    Raises:
        ConfigError: the objective cannot learn from text.
    """
    settings = config.objective.settings()
    if name == "final":
        settings |= config.final.objective or {}
    if not on_text(config, name):
        return settings
    with reporting(name, ValueError):
        return settings | OBJECTIVES[config.objective.name].settings_without_labels()


def training_phase(config: StudyConfig, name: str, folders: TaskFolders) -> TrainingPhase | None:
    """The training phase of the table of this name, on the rows in these folders; None if `table_of` is None.

    Raises:
        ConfigError: the phase is on text, and the objective cannot learn from text.
    """
    table = table_of(config, name)
    if table is None:
        return None
    settings = settings_of(config, name)
    if on_text(config, name):
        rows = folders.text(name)
    elif name == "final" and config.final.all_rows:
        rows = joined([folders.rows("train"), folders.rows("search")])
        own = config.rows.get(config.task)
        if own is not None and own.class_weights is not None:
            rows = weighted(rows, folders.task, own.class_weights)
    else:
        rows = folders.rows("train")
    rows = portion(rows, table.fraction, config.seed)
    assistant = table.assistant if isinstance(table, PretrainTable) else None
    return TrainingPhase(name, rows, table.build(len(rows)), settings, has_raw_teacher(config, name), assistant)


def training_phases(config: StudyConfig, names: tuple[str, ...], folders: TaskFolders) -> tuple[TrainingPhase, ...]:
    """The training phases of these tables, in this order; tables that are missing or have 0 steps are left out."""
    phases = (training_phase(config, name, folders) for name in names)
    return tuple(phase for phase in phases if phase)


def portion(rows: Encoded, fraction: float, seed: int) -> Encoded:
    """A random fraction of the rows, in their original order."""
    if fraction == 1:
        return rows
    chosen = np.random.default_rng([seed, 2]).permutation(len(rows))[: math.ceil(fraction * len(rows))]
    return take(rows, np.sort(chosen))


@contextlib.contextmanager
def refusing_divergence(table: str) -> Iterator[None]:
    """Report a training that diverges in this block as a mistake in the configuration's table of this name.

    Raises:
        ConfigError: the training diverged.
    """
    try:
        yield
    except Diverged as error:
        raise ConfigError(f"{table}: {error}; lower {table}.learning_rate") from None
