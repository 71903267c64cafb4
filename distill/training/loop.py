"""The training loop, used for teachers, the warm-up, candidates and the final training."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, set_seed
from torch import nn
from transformers import get_linear_schedule_with_warmup

from distill.cpu.allocator import keep_freed_memory
from distill.cpu.attention import PLAIN, SCORED
from distill.cpu.dropout import quick_dropout
from distill.encoders.family import family_of
from distill.objectives import Objective
from distill.objectives.outputs import ATTENTION_SCORES, Batch, Outputs, run
from distill.training.checkpoint import Checkpoint
from distill.training.early_stopping import EarlyStopping
from distill.training.processes import average_gradients, broadcast_weights, process_rows
from distill.training.recipe import MixedPrecision, Recipe
from foundation.errors import UserError

# Returns the teacher's outputs for batch number `step`.
TeacherOutputs = Callable[[int, Batch], Outputs]


class Diverged(UserError, ArithmeticError):
    """The loss or the scores stopped being finite."""


def make_accelerator(device: str = "auto", mixed_precision: MixedPrecision = "auto") -> Accelerator:
    """The accelerator that trains and scores models on a device.

    Args:
        device: "auto", "cpu" or "cuda".
        mixed_precision: whether matrix products are in bfloat16; "auto": if the device computes in it natively.

    Raises:
        UserError: there is no such device, or `mixed_precision` is "bf16", and the GPU has no bfloat16.
    """
    if device not in ("auto", "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"--device: there is no device {device!r} here; choose cpu or auto")
    cpu = device_type(device) == "cpu"
    if cpu:
        capabilities = torch.cpu.get_capabilities()
        native = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    else:
        native = torch.cuda.is_bf16_supported()
        if mixed_precision == "bf16" and not native:
            raise UserError("mixed_precision: this GPU has no bfloat16; choose auto or no")
    if mixed_precision == "auto":
        mixed_precision = "bf16" if native else "no"
    # Processes may wait for one that reads and encodes a large corpus.
    patience = InitProcessGroupKwargs(timeout=timedelta(days=2))
    return Accelerator(cpu=cpu, mixed_precision=mixed_precision, kwargs_handlers=[patience])


def device_type(device: str) -> str:
    """The type of device that "auto", "cpu" or "cuda" stands for on this machine: "cpu" or "cuda"."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    objective: Objective,
    recipe: Recipe,
    *,
    accelerator: Accelerator,
    teacher: TeacherOutputs | None = None,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
    checkpoint: Checkpoint | None = None,
    score: Callable[[], float] | None = None,
) -> list[float]:
    """Train `model` in place for `recipe.steps` steps and return the loss of each step.

    With several processes, each gets a part of every batch's rows, and all train on the mean of their gradients,
    starting from the weights of the first process. If the objective has a critic, it is trained before the model in
    every step, with its own optimizer.

    Args:
        model: a `PreTrainedModel`, or any module with the same `base_model`, `config` and `set_attn_implementation`.
        batches: at least `recipe.batches`, the same in all processes and after an interruption.
        teacher: returns the teacher's outputs for a batch; required if the objective needs them.
        seed: random seed of the training, for example for dropout.
        after_step: called with the number of finished steps and the loss of the last one.
        checkpoint: makes the run resumable.
        score: evaluates the model; required for early stopping (`recipe.early_stopping_patience`).

    Raises:
        Diverged: a loss, or a weight at the end of the training, is NaN or infinite.
        ValueError: there are too few batches, or a batch has fewer rows than there are processes; the teacher or the
            score is missing; or the checkpoint is from another run.
    """
    if objective.needs_teacher and teacher is None:
        raise ValueError("this objective compares with a teacher: pass its outputs")
    if recipe.early_stopping_patience is not None and score is None:
        raise ValueError("early stopping needs a score: none is measured in this training")
    keep_freed_memory()
    set_seed(seed)
    with _word_embedding_frozen(model, recipe.freeze_embeddings):
        training = _Training(model, objective, recipe, accelerator, teacher, score)
        losses = checkpoint.restore(training.parts) if checkpoint else []
        broadcast_weights(training.modules, accelerator)
        model.train()
        scores_needed = ATTENTION_SCORES in objective.needs
        with _attention_for_training(model, accelerator.device, scores_needed), quick_dropout(model.modules()):
            numbered = enumerate(batches)
            finished = len(losses) * recipe.gradient_accumulation_steps
            next(islice(numbered, finished, finished), None)
            while len(losses) < recipe.steps and not training.stopped:
                losses.append(training.step(len(losses) + 1, numbered))
                if training.early_stopping is not None:
                    training.early_stopping.evaluate(len(losses))
                if checkpoint and len(losses) % checkpoint.every == 0 and accelerator.is_main_process:
                    checkpoint.save(training.parts, losses)
                if after_step:
                    after_step(len(losses), losses[-1])
                    model.train()
        if training.early_stopping is not None:
            training.early_stopping.restore_best()
    if not all(bool(torch.isfinite(parameter).all()) for parameter in training.trained):
        raise Diverged(f"weights are not finite after {len(losses)} steps")
    return losses


class _Training:
    """The state of a training run: model, objective, optimizers and early stopping."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        recipe: Recipe,
        accelerator: Accelerator,
        teacher: TeacherOutputs | None,
        score: Callable[[], float] | None,
    ) -> None:
        self.model, self.objective, self.critic = model, objective, objective.critic
        self.recipe, self.accelerator = recipe, accelerator
        self.accumulate = recipe.gradient_accumulation_steps
        self.teacher = teacher if objective.needs_teacher else None
        groups = _parameter_groups([model, objective.projections], recipe.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)
        self.schedule = get_linear_schedule_with_warmup(
            self.optimizer, round(recipe.warmup_ratio * recipe.steps), recipe.steps
        )
        objective.to(accelerator.device)
        model.to(accelerator.device)
        self.trained = [*model.parameters(), *objective.projections.parameters()]
        # Everything whose state is saved in a checkpoint.
        self.parts: dict[str, Any] = {
            "model": model,
            "objective": objective,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
        }
        if self.critic is not None:
            self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=self.critic.learning_rate)
            self.parts |= {"critic": self.critic, "critic_optimizer": self.critic_optimizer}
        self.early_stopping: EarlyStopping | None = None
        if recipe.early_stopping_patience is not None and score is not None:
            self.early_stopping = EarlyStopping(model, recipe, score, accelerator)
            self.parts["early_stopping"] = self.early_stopping

    @property
    def modules(self) -> list[nn.Module]:
        return [module for module in (self.model, self.objective, self.critic) if module is not None]

    @property
    def stopped(self) -> bool:
        return self.early_stopping is not None and self.early_stopping.should_stop

    def step(self, number: int, batches: Iterator[tuple[int, Batch]]) -> float:
        """Optimizer step `number`, counted from 1, on the mean gradient of the next batches; returns the mean loss.

        Raises:
            Diverged: the loss is NaN or infinite.
            ValueError: there are too few batches.
        """
        value = 0.0
        for micro_step in range(self.accumulate):
            # Batches are fetched one at a time because the iterator may change the model before yielding each of them.
            batch_number, batch = next(batches, (-1, None))
            if batch is None:
                needed, available = self.recipe.steps * self.accumulate, (number - 1) * self.accumulate + micro_step
                raise ValueError(f"{needed} batches are needed; there were {available}")
            loss = self._loss(batch_number, process_rows(batch, self.accelerator)) / self.accumulate
            value += float(self.accelerator.reduce(loss.detach(), reduction="mean"))
            if not math.isfinite(value):
                raise Diverged(f"the loss is {value} at step {number}")
            self.accelerator.backward(loss)
        average_gradients(self.trained, self.accelerator)
        self.accelerator.clip_grad_norm_(self.trained, self.recipe.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value

    def _loss(self, batch_number: int, batch: Batch) -> torch.Tensor:
        teacher_outputs = self.teacher(batch_number, batch) if self.teacher else None
        with self.accelerator.autocast():
            student_outputs = run(self.model, batch, self.objective.needs)
        if self.critic is not None:
            self._train_critic(student_outputs, teacher_outputs, batch)
        with self.accelerator.autocast():
            loss: torch.Tensor = self.objective(student_outputs, teacher_outputs, batch)
            return loss

    def _train_critic(self, student: Outputs, teacher: Outputs | None, batch: Batch) -> None:
        assert self.critic is not None and teacher is not None
        self.critic_optimizer.zero_grad(set_to_none=True)
        with self.accelerator.autocast():
            loss = self.critic.loss(student, teacher, batch)
        loss.backward()
        average_gradients(self.critic.parameters(), self.accelerator)
        self.critic_optimizer.step()
        self.critic_optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _word_embedding_frozen(model: Any, frozen: bool) -> Iterator[None]:
    required = {weight: weight.requires_grad for weight in model.base_model.get_input_embeddings().parameters()}
    for weight, was_required in required.items():
        weight.requires_grad_(was_required and not frozen)
    try:
        yield
    finally:
        for weight, was_required in required.items():
            weight.requires_grad_(was_required)


@contextlib.contextmanager
def _attention_for_training(model: Any, device: torch.device, scores: bool) -> Iterator[None]:
    """Use the attention that keeps its scores if they are needed, otherwise the plain one on a CPU: there, the backward
    pass of torch's fused attention alone takes longer than both passes of the plain one.
    """
    original = model.config._attn_implementation
    if not family_of(model.config).attention_interface:
        yield
        return
    if scores:
        model.set_attn_implementation(SCORED)
    elif device.type == "cpu":
        model.set_attn_implementation(PLAIN)
    try:
        yield
    finally:
        model.set_attn_implementation(original)


def _parameter_groups(modules: Sequence[nn.Module], decay: float) -> list[dict[str, Any]]:
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                # Check the name too, because the stacked biases of several experts are a matrix.
                (undecayed if parameter.ndim < 2 or name.endswith("bias") else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": decay}, {"params": undecayed, "weight_decay": 0.0}]
