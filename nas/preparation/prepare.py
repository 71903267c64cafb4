"""Prepares everything that a search needs before its first trial. Each part is made once and kept in the user's cache,
under a key that depends on everything that the part depends on.
"""

from collections.abc import Iterator
from dataclasses import replace

from distill.training.progress import ProgressCallback, ignore_progress
from foundation.errors import warn_once
from nas.config.schema import StudyConfig
from nas.config.stages import StageTable
from nas.preparation.calibration import calibration_entry
from nas.preparation.checks import check
from nas.preparation.context import ACTIVATIONS, TEXTS, PreparationContext, preparation_context
from nas.preparation.data import TaskFolders
from nas.preparation.entries import Entry, create
from nas.preparation.outputs import outputs_entries
from nas.preparation.predictions import predictions_entry
from nas.preparation.supernet import supernet_entries, supernet_path
from nas.preparation.teacher import data_entry, teacher_entry
from nas.preparation.text import text_entries, texts_of
from nas.preparation.workspace import Compensation, UntrainedWorkspace, Workspace


def entries(context: PreparationContext) -> Iterator[Entry]:
    """What `prepare` makes, in this order. The iterator has to be advanced after an entry has been made, as the paths
    of later ones may depend on it.
    """
    workspace = workspace_of(context)
    folders, supernet = workspace.folders, workspace.supernet
    yield data_entry(context)
    yield teacher_entry(context)
    yield from text_entries(context, context.texts)
    yield from supernet_entries(context, folders)
    if workspace.compensation is not None:
        yield calibration_entry(context, folders, supernet)
        if context.activations:
            yield predictions_entry(context, folders, supernet)
    if context.outputs:
        yield from (entry for _, entry in outputs_entries(context, folders, supernet))


def workspace_of(context: PreparationContext) -> Workspace:
    """The workspace with these entries, which may not exist yet, but without the teacher's outputs."""
    folders = TaskFolders(context.data, context.teacher, texts_of(context, context.texts))
    supernet = supernet_path(context)
    compensation = None
    if context.config.supernet.inheritance == "compensated":
        calibration = calibration_entry(context, folders, supernet).path
        predictions = predictions_entry(context, folders, supernet).path
        assert calibration is not None and predictions is not None
        compensation = Compensation(calibration, predictions)
    return Workspace(context.config, folders, supernet, compensation)


def prepare(
    config: StudyConfig,
    device: str = "auto",
    on_progress: ProgressCallback = ignore_progress,
    *,
    outputs: bool = True,
    texts: tuple[str, ...] = TEXTS,
    activations: tuple[str, ...] = ACTIVATIONS,
) -> Workspace:
    """Prepare the data, the fine-tuned teacher and the supernet of a study, and what its candidates need of them: the
    calibration, the predicted losses and the teacher's outputs.

    Args:
        device: "auto", "cpu" or "cuda": where models are trained.
        outputs, texts, activations: see `PreparationContext`.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: the configuration names what does not exist or cannot work.
    """
    check(config)
    context = preparation_context(config, device, on_progress)
    return prepare_in(replace(context, outputs=outputs, texts=texts, activations=activations))


def prepare_untrained(
    workspace: Workspace,
    table: StageTable,
    tasks: tuple[str, ...],
    device: str = "auto",
    on_progress: ProgressCallback = ignore_progress,
) -> UntrainedWorkspace:
    """Prepare the tasks on which candidates are scored untrained: a workspace for each of them, of which the first is
    the given one.

    Args:
        table: of the stage; it says on what examples candidates are scored, and by what.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: see `prepare`.
    """
    config = workspace.config
    others = tuple(
        prepare(config.model_copy(update={"tasks": (task,)}), device, on_progress, outputs=False, activations=())
        for task in tasks[1:]  # sizes are allocated by the first task's predicted losses alone
    )
    return UntrainedWorkspace((workspace, *others), table.rows, table.score == "fidelity")


def prepare_in(context: PreparationContext) -> Workspace:
    """`prepare` in a context whose configuration has been checked."""
    create(context, entries(context))
    workspace = workspace_of(context)
    for line in workspace.folders.notes():
        warn_once(line)
    if not context.outputs:
        return workspace
    made = outputs_entries(context, workspace.folders, workspace.supernet)
    return replace(workspace, outputs=tuple((table, entry.path) for table, entry in made if entry.path is not None))
