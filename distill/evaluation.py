"""What a trained model is worth: its score on a whole split, and how its experts share the tokens."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from distill.data import Encoded, collate, eval_batches
from distill.loop import predict
from distill.outputs import Batch
from distill.tasks import accuracy

EVALUATION_BATCH = 100
_ROUTER = re.compile(r"(?:.*\.)?encoder\.layer\.(\d+)\.(?:ffn\.(\d+)\.|(attention)\.)?router")


def split_batches(rows: Encoded, pad_id: int, first: int | None = None) -> list[tuple[Tensor, Batch]]:
    """A split, or its `first` rows, in batches of similar length: the numbers of the rows and the model's input."""
    order = [chosen if first is None else chosen[chosen < first] for chosen in eval_batches(rows, EVALUATION_BATCH)]
    return [(torch.from_numpy(chosen), collate(rows, chosen, pad_id)) for chosen in order if len(chosen)]


def measure(
    model: nn.Module, rows: Encoded, *, accelerator: Accelerator, pad_id: int, first: int | None = None
) -> float:
    """Accuracy on a whole split, or on its `first` rows."""
    batches = split_batches(rows, pad_id, first)
    logits = predict(model, (batch for _, batch in batches), accelerator=accelerator)
    expected = torch.cat([batch["labels"] for _, batch in batches])
    return accuracy(logits.argmax(dim=-1).numpy(), expected.numpy())


@dataclass(frozen=True)
class Load:
    """How the experts of one router share the tokens (or sentences) that are no padding.

    layer: from 0. part: "ffn", "ffn 2" for a layer's second block with a gate of its own, or "attention".
    shares: of each expert; 1 in all.
    """

    layer: int
    part: str
    shares: tuple[float, ...]

    def __str__(self) -> str:
        shares = " ".join(f"{share:.0%}" for share in self.shares)
        return f"layer {self.layer + 1} {self.part}: {shares}"

    def to_json(self) -> dict[str, Any]:
        return {"layer": self.layer, "part": self.part, "shares": list(self.shares)}


def expert_load(model: nn.Module, batches: Iterable[Batch], *, accelerator: Accelerator) -> list[Load]:
    """The load of every router, lowest layer first; none where the model is dense."""
    counts: dict[str, Tensor] = {}
    hooks = []

    def counted(name: str, experts: int) -> Any:
        def hook(module: nn.Module, inputs: Any, routing: Any) -> None:
            chosen = torch.bincount(routing.experts.reshape(-1), minlength=experts).cpu()
            counts[name] = counts[name] + chosen if name in counts else chosen

        return hook

    for name, module in getattr(model, "base_model", model).named_modules():
        if _ROUTER.fullmatch(name):
            hooks.append(module.register_forward_hook(counted(name, module.count)))
    if not hooks:
        return []
    try:
        predict(model, batches, accelerator=accelerator)
    finally:
        for hook in hooks:
            hook.remove()
    loads = [_load(name, chosen) for name, chosen in counts.items()]
    return sorted(loads, key=lambda load: (load.layer, load.part != "attention", load.part))


def _load(name: str, chosen: Tensor) -> Load:
    match = _ROUTER.fullmatch(name)
    assert match is not None
    part = match[3] or ("ffn" if not int(match[2] or 0) else f"ffn {int(match[2]) + 1}")
    total = max(1, int(chosen.sum()))
    return Load(int(match[1]), part, tuple(count / total for count in chosen.tolist()))
