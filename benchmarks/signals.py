"""Measurements of candidates: what a full training, the search's own evaluation and cheaper signals say of each."""

import random
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from statistics import mean
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.candidates import dev_score, phases_of
from benchmarks.common import timed
from distill.objectives import terms
from distill.objectives.losses import soft_cross_entropy
from distill.objectives.outputs import Batch, Outputs
from distill.tasks import metrics
from distill.training.evaluation import batch_logits, comparable_outputs, split_batches
from distill.training.loop import Diverged
from nas.evaluation.trained import TrainedEvaluator
from nas.planning.allocation import PredictedLosses, allocate
from nas.planning.budget import kept_importance
from nas.preparation.workspace import Workspace, projections
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.equivalence import function_key
from search_spaces.spaces import Space

# Steps of a full training after which there are intermediate values.
INTERMEDIATE = (10, 30, 60)
# Rows of the search split for intermediate values.
ROWS = 1_000
# The training loss is the mean over so many steps.
LAST = 10
# Of the random members of a space, and the deviation of the logarithms of random weights.
DRAWING_SEED, DEVIATION = 0, 0.5
TRIES = 20
TARGET, SEARCH, KEPT = "score after full training", "score of the search", "importance kept"
RUNG = "score at the rung"

# The value of each signal, and the seconds that it takes.
Signals = dict[str, tuple[float, float]]

HARD = terms.labels(1.0).loss
SOFT = terms.soft_labels("soft labels", 1.0, soft_cross_entropy).loss


def losses(
    logits: Sequence[Tensor], teacher: Sequence[Tensor], batches: Sequence[Batch], task_type: str
) -> tuple[float, float]:
    """The loss with the labels and the loss with the teacher's predictions, means over rows.

    Args:
        logits: of each batch, as `distill.training.evaluation.batch_logits` returns them.
        teacher: the teacher's.
        task_type: the type of the task.
    """
    rows = sum(len(batch["input_ids"]) for batch in batches)
    hard = soft = 0.0
    for own_logits, target, batch in zip(logits, teacher, batches, strict=True):
        weight = len(own_logits) / rows
        hard += weight * float(HARD(Outputs(own_logits, task_type), None, batch))
        soft += weight * float(SOFT(Outputs(own_logits, task_type), Outputs(target, task_type), batch))
    return hard, soft


def on_task(task: str) -> str:
    """The name of the score after full training on a further task."""
    return f"{TARGET} on {task}"


def or_diverged(signals_of: Callable[..., Signals], *arguments: Any) -> Signals | dict[str, str]:
    """The signals, or why the training of the candidate diverged."""
    try:
        return signals_of(*arguments)
    except Diverged as error:
        return {"diverged": str(error)}


class Measure:
    """Measures candidates; intermediate values are on rows of the search split, on which it has the teacher's
    predictions.
    """

    def __init__(self, workspace: Workspace, full_steps: int) -> None:
        self.evaluator = evaluator = TrainedEvaluator(workspace)
        self.phases = phases_of(evaluator, full_steps)
        pad_id = evaluator.supernet_config.pad_token_id
        self.indices, self.batches = zip(*split_batches(evaluator.search_rows, pad_id, ROWS), strict=True)
        self.predictions = batch_logits(evaluator.teacher(), self.batches, accelerator=evaluator.accelerator)
        self.kept = kept_importance(workspace.importance())
        self.predicted = None
        if workspace.compensation is not None:
            self.predicted = PredictedLosses.load(workspace.compensation.predictions, *workspace.base())

    def intermediate_values(self, model: PreTrainedModel, when: str, before: float) -> Signals:
        """Score, fidelity and losses on the search split of a model that took `before` seconds."""
        evaluator, task = self.evaluator, self.evaluator.task
        logits, seconds = timed(lambda: batch_logits(model, self.batches, accelerator=evaluator.accelerator))
        contributions = evaluator.search_set.contributions_of(logits, self.indices)[task.metrics[0]]
        teacher_NC = comparable_outputs(self.predictions, self.batches, task.type)
        hard, soft = losses(logits, self.predictions, self.batches, task.task_type)
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
        labels, head = evaluator.workspace.num_labels, evaluator.task.type.head
        model, built = timed(lambda: evaluator.student(architecture))
        predicted = {} if self.predicted is None else {"predicted loss": (self.predicted.of(architecture), 0.0)}
        return {
            "parameters": (cost.params(architecture, labels, head), 0.0),
            "MACs": (cost.macs(architecture, num_labels=labels, head=head), 0.0),
            KEPT: (self.kept(architecture), 0.0),
            **predicted,
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
        for phase in self.phases[:-1]:
            learned = evaluator.distil(model, phase, seed, learned).projections
        evaluator.distil(model, self.phases[-1], seed, learned, after_step)
        score = dev_score(evaluator, model)
        return signals | {TARGET: (score, time.perf_counter() - started - paused)}

    def trained_on(self, architecture: Architecture, seed: int, task: str) -> Signals:
        """The final score of `trained`, under the name of the task."""
        return {on_task(task): self.trained(architecture, seed)[TARGET]}


def draw_allocations(space: Space, losses: PredictedLosses, number: int) -> list[Architecture]:
    """MILP allocations for random weights of the parts' predicted losses, which compute different functions: the best
    of their kind, as the sampler `milp` proposes them. Fewer, if `TRIES` in a row are none that is new.
    """
    rng = np.random.default_rng(DRAWING_SEED)
    members: dict[str, Architecture] = {}
    tries = 0
    while len(members) < number and tries < TRIES:
        member = allocate(space, losses.weighted(rng.lognormal(0, DEVIATION, 2 * space.base.depth + 1)))
        tries += 1
        if member is not None and function_key(member) not in members:
            members[function_key(member)], tries = member, 0
    return list(members.values())


def draw(space: Space, number: int) -> list[Architecture]:
    """Random members of the space that compute different functions; a smaller number draws the first of them."""
    rng = random.Random(DRAWING_SEED)
    members: dict[str, Architecture] = {}
    while len(members) < number:
        member = space.sample(rng)
        members.setdefault(function_key(member), member)
    return list(members.values())
