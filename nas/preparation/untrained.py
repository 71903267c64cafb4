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
    tasks: tuple[str, ...],
    device: str = "auto",
    on_progress: ProgressCallback = ignore_progress,
) -> UntrainedWorkspace:
    """Prepare a workspace for each of these tasks, of which the first is that of the given workspace.

    Args:
        table: of the stage; it says on what examples candidates are scored, and by what.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: see `nas.preparation.prepare.prepare`.
    """
    config = workspace.config
    others = tuple(
        prepare(config.model_copy(update={"tasks": (task,)}), device, on_progress, outputs=False) for task in tasks[1:]
    )
    return UntrainedWorkspace((workspace, *others), table.rows, table.score == "fidelity")
