"""Computes the teacher's outputs on the batches of the candidates once and keeps them in the cache."""

import shutil
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from distill.files import fingerprint
from distill.objectives import OBJECTIVES
from distill.tasks.encoding import batches
from distill.training.teacher_outputs import save_outputs, saved_bytes
from nas.config.schema import ConfigError
from nas.preparation.context import FORMAT, PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.phases import CANDIDATE, TrainingPhase, on_text, training_phases
from nas.preparation.supernet import live_teacher
from nas.preparation.workspace import objectives


def prepare_outputs(context: PreparationContext, folders: TaskFolders, supernet: Path) -> tuple[tuple[str, Path], ...]:
    """Prepare the teacher's outputs on the batches that candidates see with the study's own seed.

    Args:
        supernet: the folder of the supernet, whose configuration the candidates share.

    Returns:
        For every training phase of a candidate the name of its table and the folder of the outputs. Phases whose
        outputs would take more than `teacher_cache` bytes are left out.

    Raises:
        ConfigError: there is not enough space on the disk.
    """
    student_config = AutoConfig.from_pretrained(supernet)
    paths = [
        (phase.table, _phase_outputs(context, folders, phase, student_config))
        for phase in training_phases(context.config, CANDIDATE, folders)
    ]
    return tuple((table, path) for table, path in paths if path)


def _phase_outputs(
    context: PreparationContext, folders: TaskFolders, phase: TrainingPhase, student_config: Any
) -> Path | None:
    """The folder of the teacher's outputs for one training phase; None if they are not kept."""
    config, recipe = context.config, phase.recipe
    path, size, needs = _planned(context, folders, phase, student_config)
    if path is None:
        return None
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if size > free:
            raise ConfigError(
                f"teacher_cache: the teacher's outputs for {phase.table} take {size / 1e6:,.1f} MB and "
                f"{path.parent} has {free / 1e6:,.1f} MB free; make room, or have the teacher run in every step: "
                "teacher_cache = 0"
            )

    def write(folder: Path) -> None:
        context.on_progress("teacher: outputs for the candidates", None)
        teacher = live_teacher(context, folders, needs, phase.raw_teacher)
        save_outputs(teacher, context.recipe_batches(phase.rows, recipe, config.seed), folder)

    return context.create_once(path, write)


def outputs_paths(context: PreparationContext, folders: TaskFolders, supernet: Path) -> list[Path]:
    """The folders of `prepare_outputs` in the cache, which may not exist yet."""
    student_config = AutoConfig.from_pretrained(supernet)
    phases = training_phases(context.config, CANDIDATE, folders)
    paths = (_planned(context, folders, phase, student_config)[0] for phase in phases)
    return [path for path in paths if path]


def _planned(
    context: PreparationContext, folders: TaskFolders, phase: TrainingPhase, student_config: Any
) -> tuple[Path | None, int, frozenset[str]]:
    """The folder of the teacher's outputs for one training phase, or None if they are not kept; their bytes, and which
    outputs they are.
    """
    config, recipe = context.config, phase.recipe
    teacher_config = AutoConfig.from_pretrained(folders.teacher)
    of_phases = objectives(config, phase.settings, recipe, student_config, teacher_config, phase.rows)
    needs = frozenset[str]().union(*(objective.teacher_needs for objective, _ in of_phases))
    key = fingerprint(
        FORMAT,
        dict(folders.texts)[phase.table].name if on_text(config, phase.table) else None,
        context.teacher_key,
        [recipe.batch_size, recipe.batches, getattr(config, phase.table).share, phase.raw_teacher],
        sorted(needs),
        config.seed,
    )
    chosen = batches(phase.rows, recipe.batch_size, recipe.batches, config.seed)
    size = saved_bytes(teacher_config, needs, ((len(rows), int(phase.rows.lengths[rows].max())) for rows in chosen))
    teacher_takes_part = OBJECTIVES[config.objective.name].training_context is not None
    kept = not teacher_takes_part and size <= config.teacher_cache
    return (context.cache / "outputs" / key if kept else None), size, needs
