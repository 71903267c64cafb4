"""The evaluation of a candidate on the study's first task: it inherits weights, is trained for a few steps, and is
scored on the search split.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from distill.tasks import metrics
from distill.tasks.encoding import Encoded
from distill.training.distillation import Distilled, SavedOutputs, distil
from distill.training.evaluation import EvalSet, Load, expert_load, split_batches
from distill.training.loop import make_accelerator
from distill.training.teacher import load_model, load_tokenizer
from distill.training.teacher_outputs import SavedTeacher
from nas.evaluation.score import INTERMEDIATE_ROWS, Score
from nas.preparation.phases import CANDIDATE, TrainingPhase, training_phases
from nas.preparation.workspace import Workspace, load_teacher, projections
from search_spaces.architecture import Architecture
from supernet.build import build
from supernet.compensation.calibration import Calibration
from supernet.compensation.compensate import compensate
from supernet.inherit import inherit


class TrainedEvaluator:
    """Trains and scores candidates on the study's first task; whatever they have in common is loaded once."""

    def __init__(self, workspace: Workspace, device: str = "auto") -> None:
        self.workspace = workspace
        self.config = workspace.config
        self.accelerator = make_accelerator(device, self.config.mixed_precision)
        folders = workspace.folders
        self.weights = load_file(workspace.supernet / "model.safetensors")
        self.supernet_config = AutoConfig.from_pretrained(workspace.supernet)
        self.teacher_config = AutoConfig.from_pretrained(folders.teacher)
        self.tokenizer = load_tokenizer(str(folders.teacher))
        self.task = folders.task
        self.search_rows, self.search_split = folders.rows("search"), folders.split("search")
        self.frequencies = workspace.frequencies()
        self.projections = projections(workspace.supernet)
        self._teachers: dict[bool, PreTrainedModel] = {}

    @cached_property
    def training_phases(self) -> tuple[TrainingPhase, ...]:
        """The training phases of every candidate, in order."""
        return training_phases(self.config, CANDIDATE, self.workspace.folders)

    @cached_property
    def saved_outputs(self) -> dict[str, SavedOutputs]:
        """The teacher's saved outputs for candidates that are trained with the study's own seed, by the tables of their
        training phases.
        """
        return {table: SavedOutputs(self.teacher_config, SavedTeacher(path)) for table, path in self.workspace.outputs}

    def evaluate(
        self,
        architecture: Architecture,
        seed: int,
        rungs: Sequence[Fraction] = (),
        report: Callable[[int, float], None] = lambda step, score: None,
    ) -> Score:
        """Train a candidate and score it on the search split.

        Args:
            seed: seed of the order of batches and of dropout; without training it makes no difference.
            rungs: fractions of the training steps after which an intermediate score is reported.
            report: called with the number of training steps so far and every intermediate score. The score before the
                last training phase, which is the one on the task, is that of step 0.

        Raises:
            distill.training.loop.Diverged: the loss or a logit is not finite.
            supernet.compensation.ridge.CompensationError: the candidate's activations are not finite.
        """
        steps = self.training_phases[-1].recipe.steps if self.training_phases else 0
        reported_steps = {0} | ({int(rung * steps) for rung in rungs} - {steps})
        intermediate: dict[int, float] = {}
        model = self.student(architecture)

        def report_intermediate(step: int) -> None:
            if step in reported_steps and step not in intermediate:
                intermediate[step] = self.score(model, INTERMEDIATE_ROWS).value
                report(step, intermediate[step])

        self.train(model, self.training_phases, seed, report_intermediate)
        rows = self.contributions(model, self.workspace.scored)
        score = self.task.score_metric.of_contributions(rows)
        loads = self.loads(model, self.search_rows, INTERMEDIATE_ROWS) if architecture.has_experts else ()
        return Score(score.value, score.standard_error, {"inherited": intermediate[0]}, loads, rows)

    @cached_property
    def calibration(self) -> Calibration | None:
        """The calibration on which candidates are compensated; None if they are slices."""
        files = self.workspace.compensation
        return None if files is None else Calibration.load(files.calibration)

    def student(self, architecture: Architecture) -> PreTrainedModel:
        """The candidate with its inherited weights.

        Raises:
            supernet.compensation.ridge.CompensationError: the candidate's activations are not finite.
        """
        weights = inherit(self.weights, architecture, self.frequencies, self.config.seed)
        student = build(architecture, self.task.type, template=self.supernet_config, weights=weights)
        if self.calibration is not None:
            compensate(student, self.calibration, self.accelerator)
        return student

    def train(
        self,
        model: PreTrainedModel,
        phases: Sequence[TrainingPhase],
        seed: int,
        after_step: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Train a student in place. All students of one seed see the same batches in the same order.

        Args:
            after_step: called with the number of finished steps of the last phase, before its first step and after
                every step.

        Raises:
            distill.training.loop.Diverged: the loss stopped being finite.
        """
        learned: Mapping[str, Tensor] = self.projections
        for phase in phases[:-1]:
            learned = self.distil(model, phase, seed, learned).projections
        after_step(0)
        for phase in phases[-1:]:
            self.distil(model, phase, seed, learned, lambda step, loss: after_step(step))

    def distil(
        self,
        model: PreTrainedModel,
        phase: TrainingPhase,
        seed: int,
        learned: Mapping[str, Tensor],
        after_step: Callable[[int, float], None] | None = None,
        state_folder: Path | None = None,
    ) -> Distilled:
        """Train a student in place for one phase.

        Args:
            learned: the projections of the objective that earlier phases learned.
            state_folder: folder of the state from which an interrupted training is resumed.

        Raises:
            distill.training.loop.Diverged: the loss stopped being finite.
        """
        saved = self.saved_outputs_of(phase, seed)
        return distil(
            model,
            None if saved else self._teacher_of(phase),
            phase.rows,
            self.config.objective.name,
            phase.settings,
            phase.recipe,
            accelerator=self.accelerator,
            tokenizer=self.tokenizer,
            seed=seed,
            projections=learned,
            saved_outputs=saved,
            after_step=after_step,
            state_folder=state_folder,
            score=lambda: self.score(model).value,
        )

    def saved_outputs_of(self, phase: TrainingPhase, seed: int) -> SavedOutputs | None:
        """The teacher's saved outputs for this phase, or None. Outputs are saved for candidates with the study's own
        seed, so they fit no other training.
        """
        # A final training has no text for candidates, so their phases cannot be made there.
        if seed != self.config.seed or phase.table not in CANDIDATE:
            return None
        if not any(phase is candidate_phase for candidate_phase in self.training_phases):
            return None
        return self.saved_outputs.get(phase.table)

    def teacher(self, before_finetuning: bool = False) -> PreTrainedModel:
        """A new copy of the teacher: fine-tuned on the task, or with `before_finetuning` the raw one."""
        return load_teacher(self.config, self.workspace.folders, before_finetuning)

    def _teacher_of(self, phase: TrainingPhase) -> PreTrainedModel:
        """The teacher that runs in every step of a training; that of the study is loaded once."""
        if phase.assistant is not None:
            return load_model(phase.assistant, self.task.labels, self.task.task_type)
        if phase.raw_teacher not in self._teachers:
            self._teachers[phase.raw_teacher] = self.teacher(phase.raw_teacher)
        return self._teachers[phase.raw_teacher]

    @property
    def search_set(self) -> EvalSet:
        """The rows of the search split."""
        return EvalSet(self.task, self.search_split, self.search_rows, self.supernet_config.pad_token_id)

    def score(self, model: PreTrainedModel, first: int | None = None) -> metrics.Score:
        """The task's first metric on the search split, or on its `first` rows."""
        return self.task.score_metric.of_contributions(self.contributions(model, first))

    def contributions(self, model: PreTrainedModel, first: int | None = None) -> np.ndarray:
        """The contributions, of shape (N,) or (N, K), of the rows of the search split, or of its `first` rows, to the
        task's first metric.
        """
        return self.search_set.contributions(model, self.accelerator, first)[self.task.metrics[0]]

    def loads(self, model: PreTrainedModel, rows: Encoded, first: int | None = None) -> tuple[Load, ...]:
        """How the model's experts share the tokens of the rows, or of the `first` rows; empty if the model is dense."""
        batches = split_batches(rows, self.supernet_config.pad_token_id, first)
        return tuple(expert_load(model, batches, accelerator=self.accelerator))
