"""The teacher's outputs on training batches: computed by the teacher itself, or read from files."""

import bisect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel

from distill.objectives.outputs import (
    ATTENTION_SCORES,
    HIDDEN_STATES,
    RELATIONS,
    Batch,
    Outputs,
    layers_of,
    run,
    spread,
)
from distill.tasks.types import CLASSIFICATION

# The saved outputs other than the logits, each a tuple of tensors.
SAVED = (HIDDEN_STATES, ATTENTION_SCORES, RELATIONS)
# Size in bytes from which on a file of saved outputs is completed and the next one started.
PART = 256 * 2**20


class LiveTeacher:
    """Runs the teacher, in evaluation mode and without gradients, on every batch."""

    def __init__(self, model: PreTrainedModel, needs: frozenset[str], accelerator: Accelerator) -> None:
        self.model = model.eval().requires_grad_(False).to(accelerator.device)
        self.needs = needs
        self.accelerator = accelerator

    def __call__(self, step: int, batch: Batch) -> Outputs:
        with torch.no_grad(), self.accelerator.autocast():
            return run(self.model, batch, self.needs)


def save_outputs(teacher: LiveTeacher, batches: Iterable[Batch], folder: Path) -> None:
    """Save the teacher's outputs on `batches` to a new folder, in float16 or, where that overflows, in bfloat16.
    Routings are not saved.
    """
    folder.mkdir()
    pending: dict[str, torch.Tensor] = {}
    first = step = 0
    task_type = CLASSIFICATION

    def write() -> None:
        save_file(pending, folder / f"{first:09}.safetensors", metadata={"task_type": task_type})
        pending.clear()

    for step, batch in enumerate(batches):
        outputs = teacher(step, {name: tensor.to(teacher.accelerator.device) for name, tensor in batch.items()})
        task_type = outputs.task_type
        named = {"logits": outputs.logits} | {
            f"{name}.{i}": tensor for name in SAVED for i, tensor in enumerate(getattr(outputs, name)) if tensor.numel()
        }
        pending |= {f"{step}.{name}": _halved(tensor).cpu().contiguous() for name, tensor in named.items()}
        if sum(tensor.nbytes for tensor in pending.values()) >= PART:
            write()
            first = step + 1
    if pending:
        write()


def _halved(tensor: torch.Tensor) -> torch.Tensor:
    half = tensor.half()
    return tensor.bfloat16() if bool(half.isinf().any()) else half


def saved_bytes(config: Any, needs: frozenset[str], shapes: Iterable[tuple[int, int]]) -> int:
    """The number of bytes, without the logits, that `save_outputs` writes for a teacher of this configuration on
    batches of these shapes (rows, tokens).
    """
    total, layers = 0, config.num_hidden_layers
    states = len(layers_of(needs, HIDDEN_STATES, range(layers + 1))) + 3 * len(layers_of(needs, RELATIONS, [layers]))
    scored = len(layers_of(needs, ATTENTION_SCORES, range(1, layers + 1)))
    for rows, tokens in shapes:
        scores = scored * config.num_attention_heads * tokens
        total += rows * tokens * (states * config.hidden_size + scores)
    return 2 * total


class SavedTeacher:
    """Reads the outputs that `save_outputs` has written, memory-mapped, by the number of the batch."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.safetensors"))
        self.firsts = [int(path.stem) for path in paths]
        self.files = [safe_open(path, framework="pt") for path in paths]
        self.names = [set(file.keys()) for file in self.files]
        # The layers whose outputs are saved, which are the same for all batches of a file.
        self.layers = {
            (part, name): sorted(int(key.rpartition(".")[2]) for key in names if key.startswith(f"{first}.{name}."))
            for part, (names, first) in enumerate(zip(self.names, self.firsts, strict=True))
            for name in SAVED
        }
        self.task_type = (self.files[0].metadata() or {}).get("task_type", CLASSIFICATION) if paths else CLASSIFICATION

    def __call__(self, step: int, batch: Batch) -> Outputs:
        part = bisect.bisect_right(self.firsts, step) - 1
        if part < 0 or f"{step}.logits" not in self.names[part]:
            raise ValueError(f"the saved teacher outputs end before batch {step}")
        device = batch["input_ids"].device
        logits = self.files[part].get_tensor(f"{step}.logits").to(device)
        if len(logits) != len(batch["input_ids"]):
            raise ValueError(
                f"saved outputs of batch {step} are for {len(logits)} sentences, not {len(batch['input_ids'])}"
            )
        others: dict[str, Any] = {name: self._tensors(part, step, name, device) for name in SAVED}
        return Outputs(logits, self.task_type, **others)

    def _tensors(self, part: int, step: int, name: str, device: torch.device) -> tuple[torch.Tensor, ...]:
        layers = self.layers.get((part, name), [])
        tensors = {layer: self.files[part].get_tensor(f"{step}.{name}.{layer}").to(device) for layer in layers}
        return spread(tensors, max(layers, default=-1) + 1)
