"""Calibration text, and what the reference, the model that candidates approximate, computes on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers, model_inputs, part
from distill.objectives.outputs import Batch
from supernet.compensation.ridge import CompensationError
from supernet.module_inputs import module_inputs

# One of this many sentences is held out, to choose the strength of the ridge on.
HELD_OUT = 5


@dataclass(frozen=True, eq=False)
class Calibration:
    """Sentences, and what the reference's layers compute on their N tokens.

    Attributes:
        batches: padded batches of training rows.
        sums: `[layer][block]` -> the sums h + f(h) before LayerNorm, (N, D) float32, for the tokens of all batches in
            order, without padding.
        norms: `[layer]` -> weight and bias (2, D) of the LayerNorm of the highest block; empty in families whose
            LayerNorms come first: there the sums are the outputs.
        attention_sums: `[layer]` -> the sums h + attention(h) before LayerNorm, (N, D), likewise; empty if candidates
            keep all heads.
        attention_norms: `[layer]` -> weight and bias (2, D) of that LayerNorm; empty if `norms` or `attention_sums` is.
    """

    batches: tuple[Batch, ...]
    sums: tuple[tuple[Tensor, ...], ...]
    norms: tuple[Tensor, ...]
    attention_sums: tuple[Tensor, ...] = ()
    attention_norms: tuple[Tensor, ...] = ()

    def output(self, layer: int, epsilon: float) -> Tensor:
        """The output (N, D) of a layer of the reference, whose LayerNorms have this epsilon."""
        if not self.norms:
            return self.sums[layer][-1]
        return _normalized(self.sums[layer][-1], self.norms[layer], epsilon)

    def attention_output(self, layer: int, epsilon: float) -> Tensor:
        """The output (N, D) of a layer's attention, its LayerNorm included."""
        return _normalized(self.attention_sums[layer], self.attention_norms[layer], epsilon)

    @property
    def held_out_N(self) -> Tensor:
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
        for name in _OF_LAYERS:
            tensors |= {f"{name}.{i}": tensor for i, tensor in enumerate(getattr(self, name))}
        save_file(tensors, path)

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read what `save` wrote."""
        batches: dict[int, Batch] = {}
        sums: dict[int, dict[int, Tensor]] = {}
        of_layers: dict[str, dict[int, Tensor]] = {name: {} for name in _OF_LAYERS}
        for key, tensor in load_file(path).items():
            kind, number, *name = key.split(".")
            if kind == "batches":
                batches.setdefault(int(number), {})[name[0]] = tensor
            elif kind == "sums":
                sums.setdefault(int(number), {})[int(name[0])] = tensor
            else:
                of_layers[kind][int(number)] = tensor
        return cls(
            tuple(batches[number] for number in sorted(batches)),
            tuple(tuple(layer[block] for block in sorted(layer)) for _, layer in sorted(sums.items())),
            **{name: tuple(tensors[number] for number in sorted(tensors)) for name, tensors in of_layers.items()},
        )


# The fields of a calibration that are tuples of one tensor for each layer.
_OF_LAYERS = ("norms", "attention_sums", "attention_norms")


def _normalized(sum_ND: Tensor, norm_2D: Tensor, epsilon: float) -> Tensor:
    weight_D, bias_D = norm_2D
    return torch.nn.functional.layer_norm(sum_ND, weight_D.shape, weight_D, bias_D, epsilon)


def bytes_of_token(supernet: PreTrainedModel, attentions: bool) -> int:
    """The bytes of the sums that `calibrate` keeps of a token."""
    layers = encoder_layers(supernet)
    sums = sum(len(layer.ffn) for layer in layers) + attentions * len(layers)
    return sums * int(supernet.config.hidden_size) * torch.float32.itemsize


def calibrate(
    supernet: PreTrainedModel, batches: Sequence[Batch], accelerator: Accelerator, attentions: bool = False
) -> Calibration:
    """Run the reference, which has no experts, on batches of training rows, in eval mode, and keep what its layers
    compute.

    Args:
        attentions: whether candidates may have fewer heads, so that their output projections are refitted.

    Raises:
        CompensationError: a sum is not finite.
    """
    family, layers = family_of(supernet), [list(layer.ffn) for layer in encoder_layers(supernet)]
    supernet.to(accelerator.device)
    if family.pre_norm:  # what gets a sum is the next block, the next layer or the last LayerNorm
        following = [*encoder_layers(supernet)[1:], part(supernet.base_model, family.final_norm)]
        getting = [module for blocks, above in zip(layers, following, strict=True) for module in (*blocks[1:], above)]
        of_attentions = [blocks[0] for blocks in layers] if attentions else []
    else:
        getting = [block.LayerNorm for blocks in layers for block in blocks]
        of_attentions = [part(layer, family.attention_norm) for layer in encoder_layers(supernet)] if attentions else []
    inputs = iter(module_inputs(supernet, [*getting, *of_attentions], batches, accelerator.autocast))
    sums = tuple(tuple(next(inputs) for _ in blocks) for blocks in layers)
    attention_sums = tuple(inputs)
    for i, layer in enumerate(sums):
        if not all(bool(torch.isfinite(sum_ND).all()) for sum_ND in layer):
            raise CompensationError(f"layers[{i}] of the supernet is not finite: lower its learning rate")
    kept = tuple({name: tensor.cpu() for name, tensor in model_inputs(supernet, batch).items()} for batch in batches)
    if family.pre_norm:
        return Calibration(kept, sums, (), attention_sums)
    top_norms, attention_norms = (
        tuple(torch.stack((norm.weight, norm.bias)).detach().float().cpu() for norm in some)
        for some in ([blocks[-1].LayerNorm for blocks in layers], of_attentions)
    )
    return Calibration(kept, sums, top_norms, attention_sums, attention_norms)
