"""Prepares the tasks on which candidates are scored untrained: for each of them a teacher, and a supernet to inherit
from.
"""

from dataclasses import replace

from distill.training.progress import ProgressCallback, ignore_progress
from nas.config.stages import StageTable
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace


def prepare_untrained(
    workspace: Workspace,
    table: StageTable,
    all_tasks: bool = False,
    device: str = "auto",
    on_progress: ProgressCallback = ignore_progress,
) -> Workspace:
    """Add the workspaces of the tasks, the study's own first, or only this one.

    Args:
        table: of the stage; it says on what rows candidates are scored, and by what.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: see `nas.preparation.prepare.prepare`.
    """
    config = workspace.config
    others = (
        prepare(config.model_copy(update={"tasks": (task,)}), device, on_progress, outputs=False)
        for task in (config.tasks[1:] if all_tasks else ())
    )
    return replace(
        workspace,
        untrained=(workspace, *others),
        untrained_rows=table.rows,
        by_fidelity=table.score == "fidelity",
    )
