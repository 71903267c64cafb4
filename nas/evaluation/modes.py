"""The modes of evaluation: how candidates are scored, and what that needs beyond a prepared study."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from distill.training.progress import ProgressCallback
from nas.config.schema import StudyConfig
from nas.config.stages import StageTable
from nas.evaluation.one_shot import OneShotEvaluator
from nas.evaluation.trained import TrainedEvaluator
from nas.evaluation.untrained import UntrainedEvaluator
from nas.preparation.entries import Work
from nas.preparation.one_shot import one_shot_work, prepare_one_shot
from nas.preparation.prepare import prepare_untrained
from nas.preparation.workspace import AnyWorkspace, Workspace

if TYPE_CHECKING:
    from nas.planning.stages import Plan


@dataclass(frozen=True)
class Mode:
    """A mode of evaluation.

    Attributes:
        prepare: makes what the candidates of a stage need, on a device, unless it is in the cache.
        evaluator: makes an object whose method `evaluate` scores a candidate, from what was prepared and the device.
        examples: the number of examples of the search split on which candidates are scored; None: all.
        inheritance: whether the candidates are "sliced" or "compensated".
        trains: whether candidates are trained, in which case `evaluate` takes the arguments of
            `TrainedEvaluator.evaluate`; otherwise it takes the architecture alone.
        work: what takes long when `prepare` makes it.
    """

    prepare: "Callable[[Workspace, Plan, str, ProgressCallback], AnyWorkspace]"
    evaluator: Callable[[Any, str], Any]
    examples: Callable[[StudyConfig, StageTable], int | None]
    inheritance: Callable[[StudyConfig], str] = lambda config: config.supernet.inheritance
    trains: bool = False
    work: Callable[[StudyConfig], tuple[Work, ...]] = lambda config: ()


def _trained(workspace: Workspace, table: StageTable) -> Workspace:
    if table.search_fraction is None:
        return workspace
    rows = sum(workspace.folders.rows(name).examples for name in ("train", "search"))
    return replace(workspace, scored=max(1, round(table.search_fraction * rows)))


def _untrained(workspace: Workspace, plan: "Plan", device: str, on_progress: ProgressCallback) -> AnyWorkspace:
    tasks = workspace.config.scored_tasks(plan.stage)
    return prepare_untrained(workspace, plan.table, tasks, device, on_progress)


# The modes by `StageTable.evaluation`, which is also the attribute `mode` of their workspaces.
MODES: dict[str, Mode] = {
    "trained": Mode(
        prepare=lambda workspace, plan, device, on_progress: _trained(workspace, plan.table),
        evaluator=TrainedEvaluator,
        examples=lambda config, table: None,
        trains=True,
    ),
    "untrained": Mode(
        prepare=_untrained,
        evaluator=UntrainedEvaluator,
        examples=lambda config, table: table.rows,
    ),
    "one_shot": Mode(
        prepare=lambda workspace, plan, device, on_progress: prepare_one_shot(
            workspace, plan.space, device, on_progress
        ),
        evaluator=OneShotEvaluator,
        examples=lambda config, table: config.one_shot.rows,
        inheritance=lambda config: config.one_shot.inheritance,
        work=one_shot_work,
    ),
}


def scored_rows(config: StudyConfig, table: StageTable, workspace: AnyWorkspace) -> int | None:
    """The number of rows of the search split on which the candidates of a stage are scored; None: all."""
    return workspace.scored if isinstance(workspace, Workspace) else MODES[workspace.mode].examples(config, table)
