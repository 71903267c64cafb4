"""Measurements of candidates: what a full training, the search's own evaluation and cheaper signals say of each."""

import random
import time
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.measuring import timed
from benchmarks.report import BenchmarkError
from benchmarks.signals.zero_cost import block_errors, losses, observe, principal_components
from distill.tasks import metrics
from distill.tasks.encoding import training_batches
from distill.training.distillation import SavedOutputs
from distill.training.evaluation import batch_logits, comparable_outputs, evaluate, evaluate_logits, split_batches
from distill.training.teacher_outputs import LiveTeacher, SavedTeacher, save_outputs
from nas.allocation import PredictedLosses, allocate
from nas.budget import kept_importance
from nas.evaluation.score import CandidateEvaluator
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.phases import TrainingPhase
from nas.preparation.workspace import Workspace, objectives, projections
from search_spaces import cost
from search_spaces.architecture import Architecture, Genes
from search_spaces.equivalence import function_key
from search_spaces.spaces import Space
from supernet.build import full_architecture

# Steps of a full training after which there are intermediate values.
INTERMEDIATE = (10, 30, 60)
# Rows of the search split for intermediate values, and for block-local errors.
ROWS, PROBED = 1_000, 500
# The training loss is the mean over so many steps.
LAST = 10
# Of the random members of a space.
DRAWING_SEED = 0
TARGET, SEARCH, KEPT = "score after full training", "score of the search", "importance kept"
RUNG = "score at the rung"

# The value of each signal, and the seconds that it takes.
Signals = dict[str, tuple[float, float]]


class SavedOutputsEvaluator(TrainedEvaluator):
    """An evaluator that has the teacher's outputs for any seed, once they are saved."""

    outputs: SavedOutputs | None = None

    def saved_outputs_of(self, phase: TrainingPhase, seed: int) -> SavedOutputs | None:
        return self.outputs if phase.table == self.training_phases[-1].table else None

    def save(self, phase: TrainingPhase, seed: int, folder: Path) -> None:
        """Save the outputs on the batches of this phase, which begin with those of shorter phases."""
        goals = objectives(
            self.config, phase.settings, phase.recipe, self.supernet_config, self.teacher_config, phase.rows
        )
        needs = frozenset[str]().union(*(goal.teacher_needs for goal, _ in goals))
        if needs:
            pad_id = self.tokenizer.pad_token_id
            batches = training_batches(phase.rows, phase.recipe.batch_size, phase.recipe.steps, seed, pad_id)
            save_outputs(LiveTeacher(self.teacher(phase.raw_teacher), needs, self.accelerator), batches, folder)
            self.outputs = SavedOutputs(self.teacher_config, SavedTeacher(folder))


class Measure:
    """Measures candidates on rows of the search split, on which it has the teacher's predictions and the full model's
    activations.

    Args:
        one_shot: names of further signals with what evaluates candidates for them.
    """

    def __init__(
        self, workspace: Workspace, full_steps: int, one_shot: Mapping[str, CandidateEvaluator] | None = None
    ) -> None:
        self.one_shot = dict(one_shot or {})
        self.evaluator = evaluator = SavedOutputsEvaluator(workspace)
        *_, last = evaluator.training_phases
        self.full = replace(last, recipe=replace(last.recipe, steps=full_steps))
        self.indices, self.batches = self.search_batches(ROWS)
        _, self.probed = self.search_batches(PROBED)
        self.predictions = batch_logits(evaluator.teacher(), self.batches, accelerator=evaluator.accelerator)
        base, graph = workspace.base()
        self.largest = full_architecture(base, graph, max(workspace.config.space.stacks))
        self.supernet = evaluator.student(self.largest)
        self.activations = observe(self.supernet, self.probed, evaluator.accelerator)
        self.kept = kept_importance(workspace.importance())
        self.predicted = None
        if workspace.compensation is not None:
            self.predicted = PredictedLosses.load(workspace.compensation.predictions, base, graph)
        self.full_loss = self.loss_with_teacher(self.supernet)
        self.single = lru_cache(None)(self.loss_of_single_layer)
        self.dev = workspace.folders.rows("dev"), workspace.folders.split("dev")

    def search_batches(self, first: int) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
        """Batches of the first rows of the search split, and the indices of their rows."""
        rows, pad_id = self.evaluator.search_rows, self.evaluator.supernet_config.pad_token_id
        indices, batches = zip(*split_batches(rows, pad_id, first), strict=True)
        return list(indices), list(batches)

    def logits(self, model: PreTrainedModel) -> list[torch.Tensor]:
        """On the first rows of the search split, batch by batch."""
        return batch_logits(model, self.batches, accelerator=self.evaluator.accelerator)

    def loss_with_teacher(self, model: PreTrainedModel) -> float:
        """The loss with the teacher's predictions on the first rows of the search split."""
        return losses(self.logits(model), self.predictions, self.batches, self.evaluator.task.kind)[1]

    def loss_of_single_layer(self, layer: int, genes: Genes) -> float:
        """By how much that loss rises if only this layer of the full model is replaced (Puzzle, section 3.1)."""
        base, _ = self.evaluator.workspace.base()
        # The layers above are not used, and without FFNs they are inherited fastest.
        own = [*self.largest.layers[:layer], genes, *[Genes(stack=0)] * (base.depth - layer - 1)]
        student: Any = self.evaluator.student(Architecture(base, tuple(own)))
        layers: Any = self.supernet.base_model.encoder.layer
        full, layers[layer] = layers[layer], student.base_model.encoder.layer[layer]
        try:
            return self.loss_with_teacher(self.supernet) - self.full_loss
        finally:
            layers[layer] = full

    def intermediate_values(self, model: PreTrainedModel, when: str, before: float) -> Signals:
        """Score, fidelity and losses on the search split of a model that took `before` seconds."""
        evaluator, task = self.evaluator, self.evaluator.task
        logits, seconds = timed(lambda: self.logits(model))
        split = evaluator.search_split
        contributions = evaluate_logits(logits, self.indices, evaluator.search_rows, split, task)[task.metrics[0]]
        teacher_NC = comparable_outputs(self.predictions, self.batches, task.type)
        hard, soft = losses(logits, self.predictions, self.batches, task.kind)
        values = {
            "score": task.score_metric.of_contributions(contributions).value,
            "fidelity": metrics.fidelity(comparable_outputs(logits, self.batches, task.type), teacher_NC).value,
            "loss": hard,
            "loss with the teacher's predictions": soft,
        }
        return {f"{name} {when}": (value, before + seconds) for name, value in values.items()}

    def untrained(self, architecture: Architecture) -> Signals:
        """The signals that need no training."""
        evaluator = self.evaluator
        labels, head = evaluator.workspace.labels, evaluator.task.type.head
        model, built = timed(lambda: evaluator.student(architecture))
        errors, seconds = timed(lambda: block_errors(model, self.probed, self.activations, evaluator.accelerator))
        components, counted = timed(lambda: principal_components(model, self.probed, evaluator.accelerator))
        replaced, replacing = timed(lambda: sum(self.single(*layer) for layer in enumerate(architecture.layers)))
        params = cost.params(architecture, labels, head)
        predicted = {} if self.predicted is None else {"predicted loss": (self.predicted.of(architecture), 0.0)}
        slices = {
            name: timed(lambda: of_slices.evaluate(architecture, 0).value)  # noqa: B023
            for name, of_slices in self.one_shot.items()
        }
        names = ("errors of blocks", "errors of blocks, weighted", "errors of blocks, weighted and joined")
        return {
            "parameters": (params, 0.0),
            "MACs": (cost.macs(architecture, labels=labels, head=head), 0.0),
            KEPT: (self.kept(architecture), 0.0),
            **predicted,
            **slices,
            "loss with single layers replaced, sum": (replaced, replacing),
            "W-PCA": (params * components, built + counted),
            **{name: (error, built + seconds) for name, error in zip(names, errors, strict=True)},
            **self.intermediate_values(model, "untrained", built),
        }

    def searched(self, architecture: Architecture, seed: int) -> Signals:
        """The score of the search's own evaluation, and its intermediate value at the last rung of stage 1.

        Raises:
            distill.training.loop.Diverged: a loss or the logits stopped being finite.
        """
        evaluator, rungs = self.evaluator, self.evaluator.config.stage1.rungs or (Fraction(1, 2),)
        signals: Signals = {}
        started = time.perf_counter()

        def report(step: int, score: float) -> None:
            if step:
                signals[RUNG] = score, time.perf_counter() - started

        score, seconds = timed(lambda: evaluator.evaluate(architecture, seed, rungs, report).value)
        return signals | {SEARCH: (score, seconds)}

    def trained(self, architecture: Architecture, seed: int) -> Signals:
        """Intermediate values of a full training, and its final score.

        Raises:
            distill.training.loop.Diverged: a loss or the logits stopped being finite.
        """
        evaluator = self.evaluator
        signals: Signals = {}
        history: list[float] = []
        started, paused = time.perf_counter(), 0.0

        def after_step(step: int, loss: float) -> None:
            nonlocal paused
            history.append(loss)
            if step in INTERMEDIATE:
                now = time.perf_counter()
                before, when = now - started - paused, f"after {step} steps"
                signals[f"training loss {when}"] = mean(history[-LAST:]), before
                signals.update(self.intermediate_values(model, when, before))
                paused += time.perf_counter() - now

        model = evaluator.student(architecture)
        learned = projections(evaluator.workspace.supernet)
        for phase in evaluator.training_phases[:-1]:
            learned = evaluator.distil(model, phase, seed, learned).projections
        evaluator.distil(model, self.full, seed, learned, after_step)
        task, pad_id = evaluator.task, evaluator.supernet_config.pad_token_id
        scores = evaluate(model, *self.dev, task, accelerator=evaluator.accelerator, pad_id=pad_id)
        return signals | {TARGET: (scores[task.metrics[0]].value, time.perf_counter() - started - paused)}


def draw(space: Space, number: int) -> list[Architecture]:
    """Random members of the space that compute different functions; a smaller number draws the first of them."""
    rng = random.Random(DRAWING_SEED)
    members: dict[str, Architecture] = {}
    while len(members) < number:
        member = space.sample(rng)
        members.setdefault(function_key(member), member)
    return list(members.values())


def draw_allocations(space: Space, losses: PredictedLosses, number: int) -> list[Architecture]:
    """MILP allocations of equal size, each with other random weights of the layers' predicted losses; they are about as
    good as the unweighted one, so that only a signal with little noise tells them apart.

    Raises:
        BenchmarkError: there are fewer.
    """
    rng = random.Random(DRAWING_SEED)
    found: dict[str, Architecture] = {}
    for _ in range(100 * number):
        weights = [2 ** rng.gauss(0, 1) for _ in range(space.base.depth)]
        if architecture := allocate(space, losses, weights=weights):
            found.setdefault(function_key(architecture), architecture)
        if len(found) == number:
            return list(found.values())
    raise BenchmarkError(f"--architectures: found {len(found)} different allocations, not {number}")
