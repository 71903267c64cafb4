"""Computes the teacher's outputs on the batches of the candidates once and keeps them in the cache."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from transformers import AutoConfig

from distill.objectives import OBJECTIVES
from distill.tasks.encoding import batches
from distill.training.teacher_outputs import save_outputs, saved_bytes
from foundation.files import fingerprint
from nas.config.recipes import RecipeTable
from nas.config.schema import ConfigError
from nas.preparation.context import FORMAT, PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.entries import Entry, Work, teacher_of
from nas.preparation.phases import CANDIDATE, TrainingPhase, on_text, table_of, training_phases
from nas.preparation.supernet import live_teacher
from nas.preparation.workspace import objectives

# Its name in a dry run.
WHAT = "teacher's outputs for the candidates"


def outputs_entries(context: PreparationContext, folders: TaskFolders, supernet: Path) -> Iterator[tuple[str, Entry]]:
    """The teacher's outputs on the batches that candidates see with the study's own seed: for every training phase of a
    candidate the name of its table and an entry, unless its outputs would take more than `teacher_cache` bytes. Making
    one raises ConfigError if there is not enough space on the disk.

    Args:
        supernet: the folder of the supernet, whose configuration the candidates share.
    """
    config = context.config

    def work(table: RecipeTable | None) -> tuple[Work, ...]:
        return (Work("teacher: outputs for the candidates", teacher_of(config), table),)

    earlier = (folders.data, folders.teacher, supernet, *(folder for _, folder in folders.texts))
    if not all(path.exists() for path in earlier):
        for name in CANDIDATE:
            if table := table_of(config, name):
                yield name, Entry(WHAT, None, lambda path, state: None, work(table))
        return
    student_config = AutoConfig.from_pretrained(supernet)
    teacher_config = AutoConfig.from_pretrained(folders.teacher)
    teacher_takes_part = OBJECTIVES[config.objective.name].training_context is not None
    for phase in training_phases(config, CANDIDATE, folders):
        recipe = phase.recipe
        of_phases = objectives(config, phase.settings, recipe, student_config, teacher_config, phase.rows)
        needs = frozenset[str]().union(*(objective.teacher_needs for objective, _ in of_phases))
        chosen = batches(phase.rows, recipe.batch_size, recipe.batches, config.seed)
        size = saved_bytes(teacher_config, needs, ((len(rows), int(phase.rows.lengths[rows].max())) for rows in chosen))
        if teacher_takes_part or size > config.teacher_cache:
            continue
        key = fingerprint(
            FORMAT,
            dict(folders.texts)[phase.table].name if on_text(config, phase.table) else None,
            context.teacher_key,
            [recipe.batch_size, recipe.batches, getattr(config, phase.table).fraction, phase.raw_teacher],
            sorted(needs),
            config.seed,
        )
        make = partial(_make, context, folders, phase, needs, size)
        yield phase.table, Entry(WHAT, context.cache / "outputs" / key, make, work(table_of(config, phase.table)))


def _make(
    context: PreparationContext,
    folders: TaskFolders,
    phase: TrainingPhase,
    needs: frozenset[str],
    size: int,
    folder: Path,
    state: Path,
) -> None:
    free = shutil.disk_usage(folder.parent).free
    if size > free:
        raise ConfigError(
            f"teacher_cache: the teacher's outputs for {phase.table} take {size / 1e6:,.1f} MB and "
            f"{folder.parent} has {free / 1e6:,.1f} MB free; make room, or have the teacher run in every step: "
            "teacher_cache = 0"
        )
    context.on_progress("teacher: outputs for the candidates", None)
    teacher = live_teacher(context, folders, needs, phase.raw_teacher)
    save_outputs(teacher, context.recipe_batches(phase.rows, phase.recipe, context.config.seed), folder)
