"""Importance scores of inner channels and attention heads, and the sorting of both by descending scores."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from distill.encoders.family import family_of, family_of_weights
from distill.encoders.heads import heads_of
from distill.encoders.parts import encoder_layers, part, selected
from distill.encoders.student.anatomy import CHANNELS, HEADS
from distill.objectives.outputs import LOGITS, Batch, run
from distill.tasks.types import get_task_type
from search_spaces.graph import FFNGraph
from supernet.order.gradients import INPUT, OUTPUT, Loss, gradients


def neuron_importance(model: PreTrainedModel, batches: Iterable[Batch], loss: Loss) -> list[list[Tensor]]:
    """The importance of every inner channel (a neuron in MoEBERT, equation 4).

    The score of channel j is the sum over samples of |W1_j . dL/dW1_j + W2_j . dL/dW2_j|, where W1_j and W2_j are its
    weights in `expand` and `project` and L is the loss of the sample. With the output p of expand and the input h of
    project, both (tokens, inner), the two products are sum_t (p_tj - b1_j) dL/dp_tj and sum_t h_tj dL/dh_tj, so
    activations and their gradients suffice. A gate adds a third product, of the same form as the first.

    Args:
        model: a model whose layers consist of `FFNBlock`s, with graphs in which project reads as many channels as
            expand computes.
        batches: batches of tensors (B, ...) of training data; those of a reported score would leak into it.

    Returns:
        `[layer][block]` -> (inner,) float64.
    """
    scores = _OfNeurons(model)
    _add_up(model, batches, loss, scores)
    return scores.of_blocks


def mask_importance(model: PreTrainedModel, batches: Iterable[Batch], loss: Loss) -> tuple[list[Tensor], list[Tensor]]:
    """By how much, to first order, the loss changes without each attention head and each inner channel of an FFN
    (Michel et al., 2019).

    The score of a head or channel is the sum over samples of |dL/dm|, where m = 1 multiplies its output a (tokens,
    channels) and L is the loss of the sample: |sum_tc a_tc dL/da_tc| over all tokens and the channels of a head, or the
    one input channel of project.

    Args:
        model: a model whose layers consist of one `FFNBlock` each, with all heads.
        batches: as for `neuron_importance`.

    Returns:
        The scores of heads, `[layer]` -> (heads,), and of channels, `[layer]` -> (inner,), float64.
    """
    of_heads, of_channels = _OfMasks(model, HEADS), _OfMasks(model, CHANNELS)
    _add_up(model, batches, loss, of_heads, of_channels)
    return of_heads.of_layers, of_channels.of_layers


def channel_and_head_importance(
    model: PreTrainedModel, batches: Iterable[Batch], loss: Loss
) -> tuple[list[list[Tensor]], list[Tensor]]:
    """`neuron_importance`, and `mask_importance` of the heads, from one pass over the rows."""
    neurons, heads = _OfNeurons(model), _OfMasks(model, HEADS)
    _add_up(model, batches, loss, neurons, heads)
    return neurons.of_blocks, heads.of_layers


class _OfNeurons:
    """The sums of `neuron_importance`; `places` are those of `gradients`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.blocks = blocks = [list(layer.ffn) for layer in encoder_layers(model)]
        self.of_blocks = [[torch.zeros(block.expand.out_features).double() for block in layer] for layer in blocks]
        self.places: dict[Any, tuple[nn.Module, str]] = {
            (i, j, name): (getattr(block, name), INPUT if name == "project" else OUTPUT)
            for i, layer in enumerate(blocks)
            for j, block in enumerate(layer)
            for name in ("expand", "gate", "project")
            if hasattr(block, name)
        }

    def add(self, values: Mapping[Any, tuple[Tensor, Tensor | None]]) -> None:
        """Add a batch."""
        sums: dict[tuple[int, int], Tensor] = {}
        for (i, j, name), (value_BTE, grad_BTE) in values.items():
            if grad_BTE is not None:
                bias_E = None if name == "project" else getattr(self.blocks[i][j], name).bias
                term_BE = ((value_BTE if bias_E is None else value_BTE - bias_E) * grad_BTE).sum(dim=1)
                sums[i, j] = sums[i, j] + term_BE if (i, j) in sums else term_BE
        for (i, j), sum_BE in sums.items():
            self.of_blocks[i][j] += sum_BE.detach().abs().double().sum(dim=0).cpu()


class _OfMasks:
    """The sums of `mask_importance` for heads or channels."""

    def __init__(self, model: PreTrainedModel, unit: str) -> None:
        family, layers = family_of(model), encoder_layers(model)
        read = [part(layer, family.output) if unit == HEADS else layer.ffn[0].project for layer in layers]
        self.heads = [len(of_layer) for of_layer in heads_of(model.config)] if unit == HEADS else None
        sizes = self.heads or [linear.in_features for linear in read]
        self.of_layers = [torch.zeros(size, dtype=torch.float64) for size in sizes]
        self.places: dict[Any, tuple[nn.Module, str]] = {i: (linear, INPUT) for i, linear in enumerate(read)}

    def add(self, values: Mapping[Any, tuple[Tensor, Tensor | None]]) -> None:
        """Add a batch."""
        for i, (value_BTC, grad_BTC) in values.items():
            if grad_BTC is not None:
                change_BC = (value_BTC * grad_BTC).sum(dim=1).detach()
                if self.heads:
                    change_BC = change_BC.unflatten(1, (self.heads[i], -1)).sum(dim=2)
                self.of_layers[i] += change_BC.abs().double().sum(dim=0).cpu()


def _add_up(model: PreTrainedModel, batches: Iterable[Batch], loss: Loss, *scores: _OfNeurons | _OfMasks) -> None:
    """Add the batches to all of the scores."""
    places = {(n, place): where for n, of_kind in enumerate(scores) for place, where in of_kind.places.items()}
    for _, values in gradients(model, batches, loss, places):
        for n, of_kind in enumerate(scores):
            of_kind.add({place: value for (owner, place), value in values.items() if owner == n})


def sort_channels(
    weights: Mapping[str, Tensor], importance: list[list[Tensor]], config: PretrainedConfig
) -> dict[str, Tensor]:
    """Sort the inner channels of every block by descending importance, which does not change the model's function.

    Args:
        weights: state dict, with any prefix in the names.
        importance: as returned by `neuron_importance`.
        config: the model's configuration.

    Raises:
        ValueError: the graph of a layer combines inner channels with channels of x, so sorting would change its
            function.
    """
    for i, ffn in enumerate(config.ffn):
        if ffn["stack"] and "mixed" in FFNGraph.parse(ffn["formula"]).kinds:
            raise ValueError(f"layer {i}: {ffn['formula']} pairs inner channels with x; they cannot be sorted")
    family = family_of_weights(weights)
    prefix = family.prefix(weights)
    result = {name: tensor.clone() for name, tensor in weights.items()}
    for i, layer in enumerate(importance):
        for j, score in enumerate(layer):
            order = torch.argsort(score, descending=True, stable=True)
            result |= selected(family, weights, f"{prefix}{i}.", {CHANNELS: order}, j)
    return result


def sort_heads(weights: Mapping[str, Tensor], scores: list[Tensor], config: PretrainedConfig) -> dict[str, Tensor]:
    """Sort the heads of every attention by descending scores, which does not change the model's function.

    Args:
        weights: state dict, with any prefix in the names, of a model with all heads.
        scores: of every layer the scores of its heads (heads,).
        config: the model's configuration.
    """
    family = family_of_weights(weights)
    prefix, size = family.prefix(weights), family.size(config, "width") // family.size(config, "heads")
    result = {name: tensor.clone() for name, tensor in weights.items()}
    for i, score in enumerate(scores):
        order = torch.argsort(score, descending=True, stable=True)
        result |= selected(family, weights, f"{prefix}{i}.", {HEADS: channels_of_heads(order, size)})
    return result


def channels_of_heads(heads: Tensor, size: int) -> Tensor:
    """The channels, `size` for each head, of the heads with these indices, in their order."""
    return (heads[:, None] * size + torch.arange(size)).flatten()


def allocate_by_importance(importance: list[Tensor], total: int, least: int = 1) -> list[int]:
    """The number of inner channels, or of attention heads, that each layer keeps if those with the highest scores in
    the whole network are kept.

    Args:
        importance: `[layer]` -> the scores of its channels (inner,).
        total: the number of channels to keep in all layers together.
        least: the smallest number for a layer.

    Raises:
        ValueError: `total` is less than `least` per layer or more than all channels, or a layer has fewer than `least`.
    """
    layers = len(importance)
    available = sum(len(score) for score in importance)
    smallest = min(len(score) for score in importance)
    if not 0 <= least <= smallest:
        raise ValueError(f"cannot give every layer at least {least} channels: one has {smallest}")
    if not least * layers <= total <= available:
        raise ValueError(f"cannot give {total} channels to {layers} layers: between {least * layers} and {available}")
    candidates = [
        (float(value), layer)
        for layer, score in enumerate(importance)
        for value in torch.sort(score, descending=True).values[least:]
    ]
    candidates.sort(key=lambda candidate: candidate[0], reverse=True)
    kept = [least] * layers
    for _, layer in candidates[: total - least * layers]:
        kept[layer] += 1
    return kept


def summed_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss with a task's labels, summed over the predictions of a batch where training takes the mean."""
    outputs = run(model, batch, frozenset({LOGITS}))
    return get_task_type(outputs.task_type).loss(outputs.logits, batch, "sum")
