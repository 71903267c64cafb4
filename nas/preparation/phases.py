"""The training phases of a study: their rows, their length, and what objective and teacher they use."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distill.objectives import OBJECTIVES, Settings
from distill.tasks.encoding import Encoded, take
from distill.training.loop import Diverged
from distill.training.recipe import Recipe
from nas.config.schema import ConfigError, RecipeTable, StudyConfig
from nas.preparation.data import TaskFolders

# Tables of training phases on text without labels. The table `warmup` says itself whether it is one of them.
ON_TEXT = ("candidate_pretrain", "sharing_pretrain", "pretrain")
# Tables of the phases of a candidate, and of the final training, in their order.
CANDIDATE, FINAL = ("candidate_pretrain", "candidate"), ("pretrain", "final")


@dataclass(frozen=True, eq=False)
class TrainingPhase:
    """A training by the study's objective.

    Attributes:
        table: the table of the configuration that describes it.
        settings: of the objective.
        raw: whether the teacher is the one from before its fine-tuning.
    """

    table: str
    rows: Encoded
    recipe: Recipe
    settings: Settings
    raw: bool = False


def table_of(config: StudyConfig, name: str) -> RecipeTable | None:
    """The table of this name; None if there is none, or if it has no steps."""
    table: RecipeTable | None = getattr(config, name)
    return None if table is None or table.steps == 0 else table


def on_text(config: StudyConfig, name: str) -> bool:
    """Whether the phase of this table is a training on text without labels."""
    return name in ON_TEXT or (name == "warmup" and config.warmup.source == "text")


def raw(config: StudyConfig, name: str) -> bool:
    """Whether the teacher from before its fine-tuning teaches in the phase of this table."""
    return on_text(config, name) and config.text_teacher == "raw"


def settings_of(config: StudyConfig, name: str) -> Settings:
    """Settings of the objective in the phase of this table: on text, those for rows without labels, whose predictions
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
    """The phase that the table of this name describes, on the rows in these folders; None as for `table_of`.

    Raises:
        ConfigError: the objective learns nothing from text.
    """
    table = table_of(config, name)
    if table is None:
        return None
    rows = portion(folders.rows("text" if on_text(config, name) else "train"), table.share, config.seed)
    return TrainingPhase(name, rows, table.build(len(rows)), settings_of(config, name), raw(config, name))


def training_phases(config: StudyConfig, names: tuple[str, ...], folders: TaskFolders) -> tuple[TrainingPhase, ...]:
    """The phases of these tables, in this order, without those that have no steps."""
    phases = (training_phase(config, name, folders) for name in names)
    return tuple(phase for phase in phases if phase)


def portion(rows: Encoded, share: float, seed: int) -> Encoded:
    """A share of the rows, drawn at random, in their order."""
    if share == 1:
        return rows
    chosen = np.random.default_rng([seed, 2]).permutation(len(rows))[: math.ceil(share * len(rows))]
    return take(rows, np.sort(chosen))


@contextlib.contextmanager
def refusing_divergence(table: str) -> Iterator[None]:
    """Report a training that diverges in this block as a mistake in its table of the configuration.

    Raises:
        ConfigError: it diverged.
    """
    try:
        yield
    except Diverged as error:
        raise ConfigError(f"{table}: {error}; lower {table}.learning_rate") from None
