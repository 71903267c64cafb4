"""The phases of the final training, the weights from which the student starts, and the training itself."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from transformers import PreTrainedModel

from distill.objectives import OBJECTIVES
from distill.training.progress import ProgressCallback, step_reports
from distill.training.teacher import load_config
from nas.config.schema import ConfigError
from nas.evaluation.one_shot import OneShotEvaluator
from nas.evaluation.trained import TrainedEvaluator
from nas.planning.budget import limits_of
from nas.planning.stages import check_start, plan
from nas.preparation.one_shot import prepare_one_shot
from nas.preparation.phases import FINAL, ON_TEXT, TrainingPhase, refusing_divergence, training_phase
from nas.preparation.workspace import projections
from search_spaces.architecture import Architecture
from supernet.build import build

# The table of a phase in the configuration -> the name of the phase in progress lines and logs.
PHASE_NAMES = {"pretrain": "pre-training", "final": "fine-tuning"}


def final_phases(evaluator: TrainedEvaluator, warn: Callable[[str], None]) -> list[TrainingPhase]:
    """The phases of the final training: pre-training on text, if the objective can learn from text, and training on the
    task.

    Args:
        warn: called with a line that says why there is no pre-training, if there is none.

    Raises:
        ConfigError, ValueError: the objective cannot be used on the task.
    """
    config, folders = evaluator.config, evaluator.workspace.folders
    phases = []
    for table in FINAL:
        try:
            phase = training_phase(config, table, folders)
            if phase is not None:
                objective_spec = OBJECTIVES[config.objective.name]
                assistant = phase.assistant and load_config(phase.assistant, students=True)
                objective_spec.make(
                    phase.settings, evaluator.supernet_config, assistant or evaluator.teacher_config, phase.rows
                )
                phases.append(phase)
        except (ConfigError, ValueError) as error:
            if table not in ON_TEXT or config.pretrain.assistant:
                raise
            warn(f"no pre-training: {str(error).removeprefix(f'{table}: ')}")
    return phases


def starting_point(
    evaluator: TrainedEvaluator, architecture: Architecture, device: str, on_progress: ProgressCallback
) -> Callable[[Architecture], PreTrainedModel]:
    """A function that builds the student with the weights that `final.start` says: those of the warmed-up supernet, of
    stage 3's one-shot supernet, which is trained first if it is not in the cache, or random ones.

    Raises:
        ConfigError: the one-shot supernet has no such architecture.
    """
    config, workspace = evaluator.config, evaluator.workspace
    if config.final.start == "supernet":
        return evaluator.student
    if config.final.start == "random":
        return partial(_from_scratch, evaluator)
    check_start(architecture, config, workspace.base()[0])
    limits = limits_of(config, workspace, device, on_progress)
    space = plan(config, workspace, "3", architecture, limits).space
    return OneShotEvaluator(prepare_one_shot(workspace, space, device, on_progress), device).student


def _from_scratch(evaluator: TrainedEvaluator, architecture: Architecture) -> PreTrainedModel:
    """A model with random weights, which the seed of the study decides."""
    with torch.random.fork_rng():
        torch.manual_seed(evaluator.config.seed)
        return build(architecture, evaluator.task.type, template=evaluator.supernet_config)


def train(
    evaluator: TrainedEvaluator,
    model: PreTrainedModel,
    phases: Sequence[TrainingPhase],
    seed: int,
    name: str,
    state: Path,
    tensorboard: Path | None,
    on_progress: ProgressCallback,
) -> dict[str, list[float]]:
    """Train a model in place, one phase after the other.

    Args:
        name: the name of the model in progress lines and logs.
        state: the folder from which an interrupted training is resumed.
        tensorboard: the folder for logged losses.

    Returns:
        The loss of every step by the name of the phase, those before an interruption included.
    """

    # A student from random weights has no use for projections of the supernet's states.
    from_supernet = evaluator.config.final.start != "random"
    learned = projections(evaluator.workspace.supernet) if from_supernet else {}
    by_phase: dict[str, list[float]] = {}
    for phase in phases:
        label, steps = PHASE_NAMES[phase.table], phase.recipe.steps
        log, accelerator = f"{name}/{label}", evaluator.accelerator
        with (
            refusing_divergence(phase.table),
            step_reports(on_progress, f"{name}: {label}", steps, tensorboard, log, accelerator) as after_step,
        ):
            learned, by_phase[label] = evaluator.distil(model, phase, seed, learned, after_step, state / phase.table)
    return by_phase


def curve(losses: Sequence[float], points: int = 100) -> list[tuple[int, float]]:
    """The losses as at most `points` means of successive steps, each with the number of its last step."""
    size = max(1, math.ceil(len(losses) / points))
    parts = [losses[first : first + size] for first in range(0, len(losses), size)]
    return [(min(number * size, len(losses)), mean(part)) for number, part in enumerate(parts, start=1)]
