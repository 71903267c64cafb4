"""The workspace of a prepared study: the folders that the preparation has filled, and what is derived from them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from distill.encoders.family import family_of
from distill.objectives import OBJECTIVES, Objective, Settings
from distill.tasks.encoding import Encoded, token_frequencies
from distill.training.distillation import phase_recipes
from distill.training.recipe import Recipe
from distill.training.teacher import load_config, load_model
from nas.config.schema import ConfigError, StudyConfig, reporting
from nas.preparation.data import TaskFolders, teacher_config
from search_spaces.architecture import ArchitectureError
from search_spaces.base import Base
from search_spaces.graph import FFNGraph, base_graph
from supernet.build import base_of_teacher, fields_of_family, fields_of_heads

# Files in the supernet's folder that no exported model has: the projections of the objective that were learned in the
# warm-up, and the importance of the inner neurons.
PROJECTIONS, IMPORTANCE, FISHER = "projections.safetensors", "importance.safetensors", "fisher.safetensors"
# What stands before the number of a layer in the names of the values that are for its heads.
HEADS_IN_FILE = "heads/"


@dataclass(frozen=True)
class Workspace:
    """What is prepared for a study, and all that candidates need that are trained on its first task.

    Attributes:
        folders: the data of the task that stages 1 and 2 search on, the teacher that is fine-tuned on it, and the text.
        supernet: the folder of the warmed-up supernet.
        compensation: the files of compensated inheritance; None if candidates are sliced.
        outputs: the teacher's saved outputs for the candidates, as pairs of a training phase's table and a folder.
        scored: trained candidates are scored on the first so many rows of the search split; None: on all.
    """

    mode: ClassVar[str] = "trained"

    config: StudyConfig
    folders: TaskFolders
    supernet: Path
    compensation: "Compensation | None" = None
    outputs: tuple[tuple[str, Path], ...] = ()
    scored: int | None = None

    @property
    def study(self) -> "Workspace":
        """This workspace, as every mode of evaluation has the study's."""
        return self

    def base(self) -> tuple[Base, FFNGraph]:
        """The base of all candidates, and the base graph."""
        return student_base(self.config, AutoConfig.from_pretrained(self.folders.teacher))

    def importance(self) -> list[Tensor]:
        """The importance of the inner neurons of each layer's lowest block, in descending order."""
        stored = load_file(self.supernet / IMPORTANCE)
        return [stored[f"{layer}"] for layer in range(sum("/" not in name for name in stored))]

    def head_importance(self) -> list[Tensor]:
        """The importance of each layer's heads, in descending order; empty if candidates have all heads."""
        stored = load_file(self.supernet / IMPORTANCE)
        return [stored[f"{HEADS_IN_FILE}{layer}"] for layer in range(sum("/" in name for name in stored))]

    def frequencies(self) -> Tensor:
        """How often each token id occurs in the training rows of the task that stages 1 and 2 search on."""
        vocabulary = AutoConfig.from_pretrained(self.folders.teacher).vocab_size
        return token_frequencies(self.folders.rows("train"), vocabulary)

    @property
    def num_labels(self) -> int:
        """The number of outputs of the task's head."""
        return int(AutoConfig.from_pretrained(self.folders.teacher).num_labels)


@dataclass(frozen=True)
class Compensation:
    """The files of compensated inheritance.

    Attributes:
        calibration: the supernet's sums on calibration text.
        predictions: the predicted losses of narrower layers and of other activations; prepared only for allocations.
    """

    calibration: Path
    predictions: Path


@dataclass(frozen=True)
class UntrainedWorkspace:
    """What the evaluation of untrained candidates needs.

    Attributes:
        tasks: a workspace for each task on which candidates are scored, the study's own first.
        rows: the number of examples of the search split on which they are scored; None: all.
        by_fidelity: whether they are scored by their fidelity to the teacher instead of the task's metric.
    """

    mode: ClassVar[str] = "untrained"

    tasks: tuple[Workspace, ...]
    rows: int | None
    by_fidelity: bool

    @property
    def study(self) -> Workspace:
        return self.tasks[0]


@dataclass(frozen=True)
class OneShotWorkspace:
    """What the evaluation of slices of the one-shot supernet needs.

    Attributes:
        study: the workspace of the study.
        tasks: the data and teachers of all tasks.
        one_shot: the folder of the one-shot supernet.
        calibration: its sums on calibration text; None if its slices are not compensated.
    """

    mode: ClassVar[str] = "one_shot"

    study: Workspace
    tasks: tuple[TaskFolders, ...]
    one_shot: Path
    calibration: Path | None = None

    @property
    def by_task(self) -> dict[str, TaskFolders]:
        return dict(zip(self.study.config.tasks, self.tasks, strict=True))


# What a mode of evaluation needs (`nas.evaluation.modes`); each has its `mode`.
AnyWorkspace = Workspace | UntrainedWorkspace | OneShotWorkspace


def base_of_study(config: StudyConfig) -> tuple[Base, FFNGraph]:
    """The same as `student_base`, for use before the teacher is fine-tuned, which does not change its dimensions."""
    return student_base(config, teacher_config(config))


def student_base(config: StudyConfig, teacher: Any) -> tuple[Base, FFNGraph]:
    """The base of the study's students, and the base graph.

    Args:
        teacher: the Hugging Face configuration of the teacher.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: there is no such base, or it cannot learn from this teacher.
    """
    if isinstance(config.base, str):
        start = teacher if config.base == "teacher" else load_config(config.base)
        if start.vocab_size != teacher.vocab_size:
            raise ConfigError(
                f"base: {config.base} has a vocabulary of {start.vocab_size:,} and the teacher one of "
                f"{teacher.vocab_size:,}; choose a checkpoint with the teacher's tokenizer"
            )
        if family_of(start).model_type != (family_of(teacher).students_of or teacher.model_type):
            raise ConfigError(
                f"base: {config.base} is of type {start.model_type!r} and the teacher of type {teacher.model_type!r}; "
                "choose a checkpoint of the teacher's type"
            )
        base, graph = base_of_teacher(start)
    else:
        family = family_of(teacher)
        with reporting("", ArchitectureError):
            base, graph = config.base.build(teacher.vocab_size), base_graph("gelu", bool(family.gate))
        there = {name: family.size(teacher, name) for name in ("positions", "token_types")}
        changes: dict[str, Any] = {name: 0 for name, size in there.items() if not size}
        changes |= {name: family.size(teacher, name) for name in ("position_biases", "box_positions")}
        changes |= fields_of_heads(teacher) | fields_of_family(family)
        changes["relative_positions"] = family.relative_positions(teacher)
        changes["trigrams"] = base.embedding is None or family.embedding_size is None
        base = replace(base, **changes)
    return replace(base, mismatch=config.space.mismatch), graph


def objectives(
    config: StudyConfig,
    settings: Settings,
    recipe: Recipe,
    student: Any,
    teacher: Any,
    rows: Encoded | None = None,
    learned: Mapping[str, Tensor] | None = None,
) -> list[tuple[Objective, Recipe]]:
    """The study's objective and the recipe of its training: one pair for each of the objective's phases.

    Args:
        student, teacher: Hugging Face configurations.
        learned: projections of the objective with which it starts.
    """
    objective_spec = OBJECTIVES[config.objective.name]
    result = []
    for phase, phase_recipe in phase_recipes(objective_spec.phases(settings), recipe):
        objective = objective_spec.make(phase.settings, student, teacher, rows, config.seed)
        if learned:
            objective.load_state_dict({key: learned.get(key, value) for key, value in objective.state_dict().items()})
        result.append((objective, phase_recipe))
    return result


def projections(supernet: Path) -> dict[str, Tensor]:
    """The projections of the objective that the warm-up of the supernet in this folder has learned."""
    file = supernet / PROJECTIONS
    return load_file(file) if file.exists() else {}


def load_teacher(config: StudyConfig, folders: TaskFolders, raw: bool = False) -> PreTrainedModel:
    """The teacher that is fine-tuned on the task of these folders, or the raw one, whose head is untrained."""
    task = folders.task
    return load_model(config.teacher if raw else str(folders.teacher), task.labels, task.task_type)
