"""Calibration text, and what the supernet computes on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.objectives.outputs import INPUTS, Batch

# One of this many sentences is held out, to choose the strength of the ridge on.
HELD_OUT = 5


@dataclass(frozen=True, eq=False)
class Calibration:
    """Sentences, and the sums h + f(h) that the supernet's blocks compute on their N tokens before LayerNorm.

    Attributes:
        batches: padded batches of training rows.
        sums: `[layer][block]` -> (N, D) float32, for the tokens of all batches in order, without padding.
    """

    batches: tuple[Batch, ...]
    sums: tuple[tuple[Tensor, ...], ...]

    @property
    def held_N(self) -> Tensor:
        """True for the tokens of the held-out sentences."""
        first, parts = 0, []
        for batch in self.batches:
            mask_BT = batch["attention_mask"].bool()
            sentence_B = torch.arange(first, first + len(mask_BT))
            parts.append((sentence_B % HELD_OUT == HELD_OUT - 1)[:, None].expand_as(mask_BT)[mask_BT])
            first += len(mask_BT)
        return torch.cat(parts)

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        tensors = {
            f"batches.{i}.{name}": tensor for i, batch in enumerate(self.batches) for name, tensor in batch.items()
        }
        tensors |= {f"sums.{i}.{j}": sum_ND for i, layer in enumerate(self.sums) for j, sum_ND in enumerate(layer)}
        save_file(tensors, path)

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read what `save` wrote."""
        batches: dict[int, Batch] = {}
        sums: dict[int, dict[int, Tensor]] = {}
        for key, tensor in load_file(path).items():
            kind, number, name = key.split(".")
            if kind == "batches":
                batches.setdefault(int(number), {})[name] = tensor
            else:
                sums.setdefault(int(number), {})[int(name)] = tensor
        return cls(
            tuple(batches[number] for number in sorted(batches)),
            tuple(tuple(layer[block] for block in sorted(layer)) for _, layer in sorted(sums.items())),
        )


def calibrate(supernet: PreTrainedModel, batches: Sequence[Batch], accelerator: Accelerator) -> Calibration:
    """Run a dense supernet on batches of training rows, in eval mode, and keep the sums of its blocks."""
    layers = [list(layer.ffn) for layer in supernet.base_model.encoder.layer]
    found: list[list[list[Tensor]]] = [[[] for _ in blocks] for blocks in layers]
    valid_BT = torch.empty(0)

    def keep(sums: list[Tensor]) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            sums.append(inputs[0][valid_BT].float().cpu())

        return hook

    hooks = [
        block.LayerNorm.register_forward_pre_hook(keep(found[i][j]))
        for i, blocks in enumerate(layers)
        for j, block in enumerate(blocks)
    ]
    supernet.to(accelerator.device)
    was_training = supernet.training
    supernet.eval()
    try:
        with torch.no_grad(), accelerator.autocast():
            for batch in batches:
                inputs = {name: batch[name].to(accelerator.device) for name in INPUTS if name in batch}
                valid_BT = inputs["attention_mask"].bool()
                supernet.base_model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
        supernet.train(was_training)
    kept = tuple({name: batch[name].cpu() for name in INPUTS if name in batch} for batch in batches)
    return Calibration(kept, tuple(tuple(torch.cat(sums) for sums in layer) for layer in found))
