"""Prepares the tasks on which candidates are scored untrained: for each of them a teacher, and a supernet to inherit
from.
"""

from dataclasses import replace

from distill.training.progress import ProgressCallback, ignore_progress
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace


def prepare_untrained(
    workspace: Workspace,
    all_tasks: bool,
    rows: int | None = None,
    device: str = "auto",
    on_progress: ProgressCallback = ignore_progress,
) -> Workspace:
    """Add the workspaces of the tasks, the study's own first, or only this one.

    Args:
        rows: candidates are scored on so many rows of each search split; None: on all.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: see `nas.preparation.prepare.prepare`.
    """
    config = workspace.config
    others = (
        prepare(config.model_copy(update={"tasks": (task,)}), device, on_progress, outputs=False)
        for task in (config.tasks[1:] if all_tasks else ())
    )
    return replace(workspace, untrained=(workspace, *others), untrained_rows=rows)
