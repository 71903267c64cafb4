"""Calibration text, and what the supernet computes on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from distill.encoders.parts import encoder_layers, model_inputs
from distill.objectives.outputs import Batch
from supernet.compensation.ridge import CompensationError
from supernet.module_inputs import module_inputs

# One of this many sentences is held out, to choose the strength of the ridge on.
HELD_OUT = 5


@dataclass(frozen=True, eq=False)
class Calibration:
    """Sentences, and what the supernet's layers compute on their N tokens.

    Attributes:
        batches: padded batches of training rows.
        sums: `[layer][block]` -> the sums h + f(h) before LayerNorm, (N, D) float32, for the tokens of all batches in
            order, without padding.
        norms: `[layer]` -> weight and bias (2, D) of the LayerNorm of the highest block.
    """

    batches: tuple[Batch, ...]
    sums: tuple[tuple[Tensor, ...], ...]
    norms: tuple[Tensor, ...]

    def output(self, layer: int, epsilon: float) -> Tensor:
        """The output (N, D) of a layer of the supernet, whose LayerNorms have this epsilon."""
        sum_ND = self.sums[layer][-1]
        weight_D, bias_D = self.norms[layer]
        return torch.nn.functional.layer_norm(sum_ND, weight_D.shape, weight_D, bias_D, epsilon)

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
        tensors |= {f"norms.{i}": norm_2D for i, norm_2D in enumerate(self.norms)}
        save_file(tensors, path)

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read what `save` wrote."""
        batches: dict[int, Batch] = {}
        sums: dict[int, dict[int, Tensor]] = {}
        norms: dict[int, Tensor] = {}
        for key, tensor in load_file(path).items():
            kind, number, *name = key.split(".")
            if kind == "batches":
                batches.setdefault(int(number), {})[name[0]] = tensor
            elif kind == "sums":
                sums.setdefault(int(number), {})[int(name[0])] = tensor
            else:
                norms[int(number)] = tensor
        return cls(
            tuple(batches[number] for number in sorted(batches)),
            tuple(tuple(layer[block] for block in sorted(layer)) for _, layer in sorted(sums.items())),
            tuple(norms[number] for number in sorted(norms)),
        )


def calibrate(supernet: PreTrainedModel, batches: Sequence[Batch], accelerator: Accelerator) -> Calibration:
    """Run a dense supernet on batches of training rows, in eval mode, and keep what its layers compute.

    Raises:
        CompensationError: a sum is not finite.
    """
    layers = [list(layer.ffn) for layer in encoder_layers(supernet)]
    supernet.to(accelerator.device)
    norms = [block.LayerNorm for blocks in layers for block in blocks]
    found = iter(module_inputs(supernet, norms, batches, accelerator.autocast))
    sums = tuple(tuple(next(found) for _ in blocks) for blocks in layers)
    for i, layer in enumerate(sums):
        if not all(bool(torch.isfinite(sum_ND).all()) for sum_ND in layer):
            raise CompensationError(f"layers[{i}] of the supernet is not finite: lower its learning rate")
    kept = tuple({name: tensor.cpu() for name, tensor in model_inputs(supernet, batch).items()} for batch in batches)
    top_norms = (blocks[-1].LayerNorm for blocks in layers)
    return Calibration(
        kept,
        sums,
        tuple(torch.stack((norm.weight, norm.bias)).detach().float().cpu() for norm in top_norms),
    )
