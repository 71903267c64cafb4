"""Computes the teacher's outputs on the batches of the candidates once and keeps them in the cache."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transformers import AutoConfig

from distill.objectives import OBJECTIVES
from distill.tasks.encoding import batches
from distill.training.teacher_outputs import save_outputs, saved_bytes
from foundation.files import fingerprint
from nas.config.recipes import RecipeTable
from nas.config.schema import ConfigError, StudyConfig
from nas.preparation.context import FORMAT, PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.entries import Entry, Work, largest
from nas.preparation.phases import CANDIDATE, TrainingPhase, on_text, table_of, training_phases
from nas.preparation.supernet import live_teacher
from nas.preparation.workspace import objectives

# Its name in a dry run.
WHAT = "teacher's outputs for the candidates"


def outputs_entries(context: PreparationContext, folders: TaskFolders, supernet: Path) -> Iterator[Entry]:
    """The teacher's outputs on the batches that candidates see with the study's own seed: an entry for every training
    phase of a candidate, except for those whose outputs would take more than `teacher_cache` bytes. Making one raises
    ConfigError if there is not enough space on the disk.

    Args:
        supernet: the folder of the supernet, whose configuration the candidates share.
    """
    earlier = (folders.data, folders.teacher, supernet, *(folder for _, folder in folders.texts))
    if not all(path.exists() for path in earlier):
        for table in filter(None, (table_of(context.config, name) for name in CANDIDATE)):
            yield Entry(WHAT, None, lambda path, state: None, (_work(context.config, table),))
        return
    for planned in _planned(context, folders, supernet):
        if planned.path is not None:
            work = _work(context.config, table_of(context.config, planned.phase.table))
            yield Entry(WHAT, planned.path, partial(_make, context, folders, planned), (work,))


def saved_outputs(context: PreparationContext, folders: TaskFolders, supernet: Path) -> tuple[tuple[str, Path], ...]:
    """For each of these entries the name of the training phase's table and the folder."""
    planned = _planned(context, folders, supernet)
    return tuple((outputs.phase.table, outputs.path) for outputs in planned if outputs.path is not None)


def _work(config: StudyConfig, table: RecipeTable | None) -> Work:
    return Work("teacher: outputs for the candidates", largest(config), table)


@dataclass(frozen=True)
class _Outputs:
    """The teacher's outputs for one training phase: the folder, or None if they are not kept; how many bytes they take,
    and which outputs they are.
    """

    phase: TrainingPhase
    path: Path | None
    size: int
    needs: frozenset[str]


def _make(context: PreparationContext, folders: TaskFolders, outputs: _Outputs, folder: Path, state: Path) -> None:
    phase = outputs.phase
    free = shutil.disk_usage(folder.parent).free
    if outputs.size > free:
        raise ConfigError(
            f"teacher_cache: the teacher's outputs for {phase.table} take {outputs.size / 1e6:,.1f} MB and "
            f"{folder.parent} has {free / 1e6:,.1f} MB free; make room, or have the teacher run in every step: "
            "teacher_cache = 0"
        )
    context.on_progress("teacher: outputs for the candidates", None)
    teacher = live_teacher(context, folders, outputs.needs, phase.raw_teacher)
    save_outputs(teacher, context.recipe_batches(phase.rows, phase.recipe, context.config.seed), folder)


def _planned(context: PreparationContext, folders: TaskFolders, supernet: Path) -> Iterator[_Outputs]:
    config = context.config
    student_config = AutoConfig.from_pretrained(supernet)
    teacher_config = AutoConfig.from_pretrained(folders.teacher)
    for phase in training_phases(config, CANDIDATE, folders):
        recipe = phase.recipe
        of_phases = objectives(config, phase.settings, recipe, student_config, teacher_config, phase.rows)
        needs = frozenset[str]().union(*(objective.teacher_needs for objective, _ in of_phases))
        key = fingerprint(
            FORMAT,
            dict(folders.texts)[phase.table].name if on_text(config, phase.table) else None,
            context.teacher_key,
            [recipe.batch_size, recipe.batches, getattr(config, phase.table).fraction, phase.raw_teacher],
            sorted(needs),
            config.seed,
        )
        chosen = batches(phase.rows, recipe.batch_size, recipe.batches, config.seed)
        size = saved_bytes(teacher_config, needs, ((len(rows), int(phase.rows.lengths[rows].max())) for rows in chosen))
        teacher_takes_part = OBJECTIVES[config.objective.name].training_context is not None
        kept = not teacher_takes_part and size <= config.teacher_cache
        yield _Outputs(phase, context.cache / "outputs" / key if kept else None, size, needs)
