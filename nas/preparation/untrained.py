"""Prepares the tasks on which candidates are scored untrained: for each of them a teacher, and a supernet to inherit
from.
"""

from distill.training.progress import ProgressCallback, ignore_progress
from nas.config.stages import StageTable
from nas.preparation.prepare import prepare
from nas.preparation.workspace import UntrainedWorkspace, Workspace


def prepare_untrained(
    workspace: Workspace,
    table: StageTable,
    all_tasks: bool = False,
    device: str = "auto",
    on_progress: ProgressCallback = ignore_progress,
) -> UntrainedWorkspace:
    """Prepare a workspace for each of the study's tasks, or only have that of its first one.

    Args:
        table: of the stage; it says on what examples candidates are scored, and by what.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: see `nas.preparation.prepare.prepare`.
    """
    config = workspace.config
    others = tuple(
        prepare(config.model_copy(update={"tasks": (task,)}), device, on_progress, outputs=False)
        for task in (config.tasks[1:] if all_tasks else ())
    )
    return UntrainedWorkspace((workspace, *others), table.rows, table.score == "fidelity")
