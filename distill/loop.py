"""The one training loop, for the teacher, the warm-up, candidates and the final training; and evaluation."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from transformers import get_linear_schedule_with_warmup

from distill.objectives import Objective
from distill.outputs import LOGITS, Batch, Outputs, run
from distill.recipe import Recipe

# Returns the teacher's outputs for batch number `step`.
TeacherOutputs = Callable[[int, Batch], Outputs]


class Diverged(ArithmeticError):
    """The loss or the scores stopped being finite."""


def make_accelerator(device: str = "auto") -> Accelerator:
    """`device` is "auto", "cpu" or "cuda"; the precision is bfloat16 where the processor computes in it."""
    cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    if cpu:
        able = torch.cpu.get_capabilities()
        bf16 = bool(able.get("avx512_bf16") or able.get("amx_bf16"))
    else:
        bf16 = torch.cuda.is_bf16_supported()
    return Accelerator(cpu=cpu, mixed_precision="bf16" if bf16 else "no")


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    objective: Objective,
    recipe: Recipe,
    *,
    accelerator: Accelerator,
    teacher: TeacherOutputs | None = None,
    accumulate: int = 1,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train `model` in place for `recipe.steps` steps and return the loss of each step.

    Args:
        model: a `PreTrainedModel`, or what has its base_model, config and set_attn_implementation.
        batches: at least `recipe.steps * accumulate` of them.
        teacher: gives the teacher's outputs of a batch; required when the objective needs them.
        accumulate: batches whose mean gradient makes one step.
        seed: of dropout.
        after_step: called with the number of finished steps and the loss of the last.

    Raises:
        Diverged: a loss is NaN or infinite.
        ValueError: there are too few batches, or the teacher is missing.
    """
    if objective.needs_teacher and teacher is None:
        raise ValueError("this objective compares with a teacher: pass its outputs")
    set_seed(seed)
    encoder: Any = model.base_model
    encoder.get_input_embeddings().weight.requires_grad_(not recipe.freeze_embeddings)
    parameters = _parameter_groups([model, objective], recipe.weight_decay)
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, round(recipe.warmup * recipe.steps), recipe.steps)
    objective.to(accelerator.device)
    model.to(accelerator.device)
    prepared = accelerator.prepare_model(model) if accelerator.num_processes > 1 else model
    prepared.train()
    history: list[float] = []
    with _attention_for_training(model, accelerator.device):
        stream = enumerate(batches)
        while len(history) < recipe.steps:
            value = 0.0
            for part in range(accumulate):
                try:
                    number, batch = next(stream)
                except StopIteration:
                    done = len(history) * accumulate + part
                    raise ValueError(f"{recipe.steps * accumulate} batches are needed; there were {done}") from None
                batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
                target = teacher(number, batch) if teacher and objective.needs_teacher else None
                with accelerator.autocast():
                    student = run(prepared, batch, objective.needs)
                    loss = objective(student, target, batch) / accumulate
                value += float(loss.detach())
                if not math.isfinite(value):
                    raise Diverged(f"the loss is {value} at step {len(history) + 1}")
                accelerator.backward(loss)
            accelerator.clip_grad_norm_([*prepared.parameters(), *objective.parameters()], recipe.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            history.append(value)
            if after_step:
                after_step(len(history), value)
                prepared.train()
    return history


@contextlib.contextmanager
def _attention_for_training(model: Any, device: torch.device) -> Iterator[None]:
    """Eager attention on a CPU: torch's fused one takes longer for its backward pass than all of the eager one."""
    usual = model.config._attn_implementation
    if device.type == "cpu":
        model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


def _parameter_groups(modules: Sequence[nn.Module], decay: float) -> list[dict]:
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                # By name too: the biases of several experts are stacked to a matrix.
                (spared if parameter.ndim < 2 or name.endswith("bias") else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": decay}, {"params": spared, "weight_decay": 0.0}]


@torch.inference_mode()
def predict(model: nn.Module, batches: Iterable[Batch], *, accelerator: Accelerator) -> Tensor:
    """Logits (N, C) in float32 on the CPU, of all rows of `batches` in their order; the model in eval mode.

    Raises:
        Diverged: a logit is NaN or infinite.
    """
    model.to(accelerator.device)
    training = model.training
    model.eval()
    rows = []
    for batch in batches:
        batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
        with accelerator.autocast():
            rows.append(run(model, batch, frozenset({LOGITS})).logits.float().cpu())
    model.train(training)
    logits = torch.cat(rows)
    if not torch.isfinite(logits).all():
        raise Diverged("the model's logits are not finite")
    return logits
