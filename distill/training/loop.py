"""The one training loop, for the teacher, the warm-up, candidates and the final training; and evaluation."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from transformers import get_linear_schedule_with_warmup

from distill.cpu.allocator import keep_freed_memory
from distill.cpu.attention import PLAIN, SCORED
from distill.cpu.dropout import quick_dropout
from distill.files import replace
from distill.objectives import Objective
from distill.objectives.outputs import ATTENTION_SCORES, LOGITS, Batch, Outputs, run
from distill.training.recipe import Recipe
from search_spaces.errors import UserError

# Returns the teacher's outputs for batch number `step`.
TeacherOutputs = Callable[[int, Batch], Outputs]


class Diverged(UserError, ArithmeticError):
    """The loss or the scores stopped being finite."""


def make_accelerator(device: str = "auto", rounded: bool = True) -> Accelerator:
    """`device` is "auto", "cpu" or "cuda"; the precision is float32, or bfloat16 where the processor computes in it and
    products may be `rounded`.
    """
    cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    if cpu:
        able = torch.cpu.get_capabilities()
        bf16 = bool(able.get("avx512_bf16") or able.get("amx_bf16"))
    else:
        bf16 = torch.cuda.is_bf16_supported()
    return Accelerator(cpu=cpu, mixed_precision="bf16" if bf16 and rounded else "no")


@dataclass(frozen=True)
class Checkpoint:
    """A file in which a training run keeps its state every so many steps, and from which it goes on, if it is there, as
    if it had not been interrupted. It is the caller's to remove.
    """

    path: Path
    every: int = 100


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
    checkpoint: Checkpoint | None = None,
) -> list[float]:
    """Train `model` in place for `recipe.steps` steps and return the loss of each step.

    Several processes share each batch out among them, by rows, and train on the mean of their gradients, all from the
    first one's weights. A critic of the objective learns before the model in every step, with an optimiser of its own.

    Args:
        model: a `PreTrainedModel`, or what has its base_model, config and set_attn_implementation.
        batches: at least `recipe.steps * accumulate` of them, the same in all processes and after an interruption.
        teacher: gives the teacher's outputs of a batch; required when the objective needs them.
        accumulate: batches whose mean gradient makes one step.
        seed: of dropout.
        after_step: called with the number of finished steps and the loss of the last.
        checkpoint: makes the run resumable.

    Raises:
        Diverged: a loss, or a weight in the end, is NaN or infinite.
        ValueError: there are too few batches, or too few rows in one for all processes; the teacher is missing; or the
            checkpoint is of another run.
    """
    if objective.needs_teacher and teacher is None:
        raise ValueError("this objective compares with a teacher: pass its outputs")
    keep_freed_memory()
    set_seed(seed)
    encoder: Any = model.base_model
    encoder.get_input_embeddings().weight.requires_grad_(not recipe.freeze_embeddings)
    groups = _parameter_groups([model, objective.projections], recipe.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, round(recipe.warmup * recipe.steps), recipe.steps)
    objective.to(accelerator.device)
    model.to(accelerator.device)
    state: dict[str, Any] = {"model": model, "objective": objective, "optimizer": optimizer, "schedule": schedule}
    critic = objective.critic
    if critic is not None:
        state["critic"] = critic
        state["critic_optimizer"] = torch.optim.Adam(critic.parameters(), lr=critic.learning_rate)
    history = _resumed(checkpoint, state) if checkpoint else []
    _spread([part for part in (model, objective, critic) if part is not None], accelerator)
    learned = [*model.parameters(), *objective.projections.parameters()]
    model.train()
    scores = ATTENTION_SCORES in objective.needs
    with _attention_for_training(model, accelerator.device, scores), quick_dropout(model):
        stream = enumerate(batches)
        next(islice(stream, len(history) * accumulate, len(history) * accumulate), None)
        while len(history) < recipe.steps:
            value = 0.0
            for part in range(accumulate):
                try:
                    number, batch = next(stream)
                except StopIteration:
                    done = len(history) * accumulate + part
                    raise ValueError(f"{recipe.steps * accumulate} batches are needed; there were {done}") from None
                batch = _share(batch, accelerator)
                target = teacher(number, batch) if teacher and objective.needs_teacher else None
                with accelerator.autocast():
                    student = run(model, batch, objective.needs)
                if critic is not None:
                    _train_critic(critic, state["critic_optimizer"], student, target, batch, accelerator)
                with accelerator.autocast():
                    loss = objective(student, target, batch) / accumulate
                value += float(accelerator.reduce(loss.detach(), reduction="mean"))
                if not math.isfinite(value):
                    raise Diverged(f"the loss is {value} at step {len(history) + 1}")
                accelerator.backward(loss)
            _average(learned, accelerator)
            accelerator.clip_grad_norm_(learned, recipe.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            history.append(value)
            if checkpoint and len(history) % checkpoint.every == 0 and accelerator.is_main_process:
                _save(checkpoint, state, history)
            if after_step:
                after_step(len(history), value)
                model.train()
    if not all(bool(torch.isfinite(parameter).all()) for parameter in learned):
        raise Diverged(f"weights are not finite after {len(history)} steps")
    return history


def _share(batch: Batch, accelerator: Accelerator) -> Batch:
    """This process's rows of a batch, on its device."""
    processes = accelerator.num_processes
    rows = len(batch["input_ids"])
    if rows < processes:
        raise ValueError(f"a batch of {rows} rows cannot be shared out to {processes} processes: raise batch_size")
    own = slice(accelerator.process_index, None, processes)
    return {name: tensor[own].to(accelerator.device) for name, tensor in batch.items()}


def _spread(parts: Iterable[nn.Module], accelerator: Accelerator) -> None:
    """Give all processes the first one's weights."""
    if accelerator.num_processes > 1:
        for part in parts:
            for tensor in part.state_dict().values():
                torch.distributed.broadcast(tensor, 0)


def _average(parameters: Iterable[nn.Parameter], accelerator: Accelerator) -> None:
    """Make gradients the means over all processes. Where a parameter has none in some processes, it counts as 0 there;
    where it has none in any, it stays without: objectives differ in what they reach, which rules out torch's DDP.
    """
    if accelerator.num_processes == 1:
        return
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    found = torch.tensor([float(parameter.grad is not None) for parameter in learned], device=accelerator.device)
    for parameter, processes in zip(learned, accelerator.reduce(found, reduction="sum").tolist(), strict=True):
        if processes:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = accelerator.reduce(gradient, reduction="mean")


def _train_critic(
    critic: Any,
    optimizer: torch.optim.Optimizer,
    student: Outputs,
    teacher: Outputs | None,
    batch: Batch,
    accelerator: Accelerator,
) -> None:
    """One step of the critic's."""
    optimizer.zero_grad(set_to_none=True)
    with accelerator.autocast():
        loss = critic.loss(student, teacher, batch)
    loss.backward()
    _average(critic.parameters(), accelerator)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _save(checkpoint: Checkpoint, state: Mapping[str, Any], history: Sequence[float]) -> None:
    kept = {name: part.state_dict() for name, part in state.items()}
    # Of an objective also what it remembers of the batches so far.
    kept["buffers"] = dict(state["objective"].named_buffers())
    kept["history"] = list(history)
    kept["random"] = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]
    try:
        replace(checkpoint.path, lambda draft: torch.save(kept, draft))
    except RuntimeError as error:  # what PyTorch makes of a full disk
        raise OSError(f"{checkpoint.path} cannot be written ({str(error).splitlines()[0]})") from error


def _resumed(checkpoint: Checkpoint, state: Mapping[str, Any]) -> list[float]:
    """Puts the saved state in place; returns the losses so far.

    Raises:
        ValueError: the file is of another run.
    """
    if not checkpoint.path.exists():
        return []
    kept = torch.load(checkpoint.path, map_location="cpu", weights_only=True)
    try:
        for name, part in state.items():
            part.load_state_dict(kept[name])
        for name, buffer in state["objective"].named_buffers():
            buffer.copy_(kept["buffers"][name])
    except (KeyError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{checkpoint.path}: the state of another training run ({reason}); remove it") from None
    of_cpu, *of_gpu = kept["random"]
    torch.set_rng_state(of_cpu)
    if of_gpu and torch.cuda.is_available():
        torch.cuda.set_rng_state(*of_gpu)
    return list(kept["history"])


@contextlib.contextmanager
def _attention_for_training(model: Any, device: torch.device, scores: bool) -> Iterator[None]:
    """The attention that keeps its scores where they are needed, else the plain one on a CPU: torch's fused one takes
    longer for its backward pass there than all of the plain one.
    """
    usual = model.config._attn_implementation
    if scores:
        model.set_attn_implementation(SCORED)
    elif device.type == "cpu":
        model.set_attn_implementation(PLAIN)
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


def predict(model: nn.Module, batches: Iterable[Batch], *, accelerator: Accelerator) -> Tensor:
    """Logits (N, C) in float32 on the CPU, of all rows of `batches` in their order; the model in eval mode.

    Raises:
        Diverged: a logit is NaN or infinite.
    """
    return torch.cat(batch_logits(model, batches, accelerator=accelerator))


def batch_logits(model: nn.Module, batches: Iterable[Batch], *, accelerator: Accelerator) -> list[Tensor]:
    """As `predict`, the logits of each batch for itself, in the shape of the task's kind (`distill.tasks.types`)."""
    model.to(accelerator.device)  # not in inference mode: weights that move there cannot learn any more
    training = model.training
    model.eval()
    rows = []
    with torch.inference_mode():
        for batch in batches:
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            with accelerator.autocast():
                rows.append(run(model, batch, frozenset({LOGITS})).logits.float().cpu())
    model.train(training)
    if not all(torch.isfinite(logits).all() for logits in rows):
        raise Diverged("the model's logits are not finite")
    return rows
