"""Evaluation of a model: its scores on a split, and the load of its experts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from distill.encoders.family import family_of
from distill.encoders.student.anatomy import Family
from distill.objectives.outputs import LOGITS, Batch, routers, run
from distill.tasks.encoding import Encoded, collate, eval_batches
from distill.tasks.long_texts import averaged
from distill.tasks.metrics import Score
from distill.tasks.splits import AnySplit
from distill.tasks.task import Task, contributions
from distill.tasks.types import TaskType
from distill.training.loop import Diverged

EVALUATION_BATCH = 100


def split_batches(rows: Encoded, pad_id: int, first: int | None = None) -> list[Batch]:
    """Batches of rows of similar length from a whole split or from its `first` rows (for questions and long texts, all
    windows of the first ones).
    """
    source = np.arange(len(rows)) if rows.sources is None else rows.sources
    order = [
        chosen if first is None else chosen[source[chosen] < first] for chosen in eval_batches(rows, EVALUATION_BATCH)
    ]
    return [collate(rows, chosen, pad_id) for chosen in order if len(chosen)]


def batch_logits(model: nn.Module, batches: Iterable[Batch], *, accelerator: Accelerator) -> list[Tensor]:
    """The logits of every batch, in float32 on the CPU, in the shape for the task type (`distill.tasks.types`). The
    model runs in eval mode.

    Raises:
        Diverged: a logit is NaN or infinite.
    """
    model.to(accelerator.device)  # outside of inference mode: tensors created inside it cannot be trained
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


def rows_logits(model: nn.Module, rows: Encoded, pad_id: int, accelerator: Accelerator) -> np.ndarray:
    """The logits of all rows in their order: (N, ...) in float32, of a task with equal shapes of all rows.

    Raises:
        Diverged: a logit is NaN or infinite.
    """
    batches = split_batches(rows, pad_id)
    order = torch.cat([batch["rows"] for batch in batches]).argsort()
    return torch.cat(batch_logits(model, batches, accelerator=accelerator))[order].numpy()


@dataclass(frozen=True, eq=False)
class EvalSet:
    """The examples on which the models of a task are scored, and their encoding.

    Attributes:
        encoded: the split as encoded by `distill.tasks.types.encode`.
        pad_id: the token id of padding.

    Raises:
        ValueError: the encoded rows are of another task type, or do not belong to this split.
    """

    task: Task
    split: AnySplit
    encoded: Encoded
    pad_id: int

    def __post_init__(self) -> None:
        rows, task_type = self.encoded, self.task.task_type
        if rows.task_type != task_type or rows.examples != len(self.split):
            found = f"{rows.examples} encoded rows ({rows.task_type})"
            raise ValueError(f"{found} are not the {len(self.split)} of a split ({task_type})")

    def batches(self, first: int | None = None) -> list[Batch]:
        """`split_batches` of the examples, or of the `first` ones."""
        return split_batches(self.encoded, self.pad_id, first)

    def score(self, model: nn.Module, accelerator: Accelerator, first: int | None = None) -> Score:
        """The task's first metric on all examples, or on the `first` ones.

        Raises:
            distill.training.loop.Diverged: the model's logits are not finite.
        """
        contributions = self.contributions(model, accelerator, first)
        return self.task.score_metric.of_contributions(contributions[self.task.metrics[0]])

    def contributions(
        self, model: nn.Module, accelerator: Accelerator, first: int | None = None
    ) -> dict[str, np.ndarray]:
        """The contributions of the examples, or of the `first` ones, to all metrics, each of shape (N,) or (N, K).
        Scores (`distill.tasks.task.scores_of`) and paired differences between models follow from them.

        Questions are predicted to be unanswerable only if the split has unanswerable questions.

        Raises:
            distill.training.loop.Diverged: the model's logits are not finite.
        """
        batches = self.batches(first)
        return self.contributions_of(batch_logits(model, batches, accelerator=accelerator), batches)

    def contributions_of(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> dict[str, np.ndarray]:
        """As `contributions`, given the logits of each batch of `split_batches`."""
        assert self.task.type.references is not None
        predicted = self._predictions(logits, batches)
        return contributions(self.task, predicted, self.task.type.references(self.split)[: len(predicted)])

    def predictions(self, model: nn.Module, accelerator: Accelerator, first: int | None = None) -> Sequence[Any]:
        """The predictions for all examples, or for the `first` ones, in their order."""
        batches = self.batches(first)
        return self._predictions(batch_logits(model, batches, accelerator=accelerator), batches)

    def _predictions(self, logits: Sequence[Tensor], batches: Sequence[Batch]) -> Sequence[Any]:
        numbers = torch.cat([batch["rows"] for batch in batches]).tolist()
        of_rows = dict(zip(numbers, (row.numpy() for of_batch in logits for row in of_batch), strict=True))
        return self.task.predict(self.encoded, [of_rows[number] for number in range(len(of_rows))], self.split)


def comparable_outputs(
    logits_of_batches: Sequence[Tensor],
    batches: Sequence[Batch],
    task_type: TaskType,
    sources: np.ndarray | None = None,
) -> np.ndarray:
    """What `distill.tasks.metrics.fidelity` compares: the predicted numbers (N, 1), or where rows may have several
    classes a number for each; or the logits (N, choices) of all
    distributions, less their mean over the choices, which makes no difference to a distribution, and if the choices are
    classes also less the mean of each class, since its bias is easily learned. 0 for padding. Of a long text they are
    the mean over its windows.

    Args:
        sources: of the encoded rows, if texts have several of them.
    """
    parts = []
    for logits, batch in zip(logits_of_batches, batches, strict=True):
        if task_type.distributions is None or task_type.multi_label:
            parts.append(logits.float())
            continue
        logits_NC = task_type.distributions(logits, batch)
        real_NC = logits_NC > torch.finfo(logits_NC.dtype).min
        mean_N1 = torch.where(real_NC, logits_NC, 0).sum(dim=1, keepdim=True) / real_NC.sum(dim=1, keepdim=True)
        parts.append(torch.where(real_NC, logits_NC - mean_N1, 0))
    widest = max(part.shape[1] for part in parts)
    outputs_NC = torch.cat([nn.functional.pad(part, (0, widest - part.shape[1])) for part in parts]).double()
    if task_type.head.pooled and sources is not None:
        of_rows = sources[torch.cat([batch["rows"] for batch in batches]).numpy()]
        outputs_NC = torch.from_numpy(averaged(outputs_NC.numpy(), of_rows))
    if task_type.classes:
        outputs_NC -= outputs_NC.mean(dim=0)
    return outputs_NC.numpy()


@dataclass(frozen=True)
class Load:
    """The distribution of tokens (or sentences), without padding, over the experts of one router.

    layer: counted from 0; -1 for the head.
    part: "ffn", "ffn 2" for the gate of a layer's second block, "attention" or "head".
    shares: the fraction of the tokens that each expert processes; they add up to 1.
    """

    layer: int
    part: str
    shares: tuple[float, ...]

    def __str__(self) -> str:
        shares = " ".join(f"{share:.0%}" for share in self.shares)
        return f"layer {self.layer + 1} {self.part}: {shares}" if self.layer >= 0 else f"{self.part}: {shares}"

    def to_json(self) -> dict[str, Any]:
        return {"layer": self.layer, "part": self.part, "shares": list(self.shares)}


def expert_load(model: nn.Module, batches: Iterable[Batch], *, accelerator: Accelerator) -> list[Load]:
    """The load of every router, lowest layer first; empty if the model is dense."""
    counts: dict[str, Tensor] = {}
    hooks = []

    def counted(name: str, experts: int) -> Any:
        def hook(module: nn.Module, inputs: Any, routing: Any) -> None:
            chosen = torch.bincount(routing.experts.reshape(-1), minlength=experts).cpu()
            counts[name] = counts[name] + chosen if name in counts else chosen

        return hook

    for name, module in routers(model):
        hooks.append(module.register_forward_hook(counted(name, module.count)))
    if not hooks:
        return []
    try:
        batch_logits(model, batches, accelerator=accelerator)
    finally:
        for hook in hooks:
            hook.remove()
    family = family_of(model)
    loads = [_load(family, name, chosen) for name, chosen in counts.items()]
    return sorted(loads, key=lambda load: (load.layer, load.part != "attention", load.part))


def mean_loads(loads: Sequence[Sequence[Load]]) -> tuple[Load, ...]:
    """The mean load of every router over the tasks; all tasks have the same weight.

    Args:
        loads: for every task the loads of the same routers in the same order.
    """
    means = []
    for router_loads in zip(*loads, strict=True):
        shares = zip(*(load.shares for load in router_loads), strict=True)
        means.append(replace(router_loads[0], shares=tuple(map(fmean, shares))))
    return tuple(means)


def _load(family: Family, name: str, chosen: Tensor) -> Load:
    total = max(1, int(chosen.sum()))
    shares = tuple(count / total for count in chosen.tolist())
    parts = family.split(name)
    if parts is None:
        return Load(-1, "head", shares)
    _, layer, inside = parts
    if inside.startswith(f"{family.attention}."):
        return Load(layer, "attention", shares)
    block = next((int(word) for word in inside.split(".") if word.isdigit()), 0)
    return Load(layer, f"ffn {block + 1}" if block else "ffn", shares)
