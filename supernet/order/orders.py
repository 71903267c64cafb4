"""The orders of inner channels and of attention heads, by their names in a configuration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers, part
from distill.objectives.outputs import Batch
from supernet.order.gradients import Loss
from supernet.order.importance import channel_and_head_importance
from supernet.order.moments import ModelMoments
from supernet.order.reconstruction import forward_selection, forward_selection_of_heads

# `[layer][block]` -> (inner,); the channels of a block are kept in descending order of their scores.
Scores = list[list[Tensor]]
# `[layer]` -> (heads,); likewise.
HeadScores = list[Tensor]


@dataclass(frozen=True, eq=False)
class OrderInputs:
    """What an order may be measured on.

    Attributes:
        model: a dense supernet.
        batches: batches of training rows.
        loss: that of the labels or, if the supernet learned from text, of its objective.
        sampled_loss: `supernet.order.moments.sampled_loss`, whose gradients give the Fisher information.
        seed: of the random order.
    """

    model: PreTrainedModel
    batches: Sequence[Batch]
    loss: Loss
    sampled_loss: Loss
    seed: int

    @property
    def heads(self) -> int:
        """The number of heads of every attention."""
        return family_of(self.model).size(self.model.config, "heads")

    @cached_property
    def moments(self) -> ModelMoments:
        """The moments of all linear layers that read channels or heads, with the sampled loss."""
        return ModelMoments(self.model, self.batches, self.sampled_loss)

    @cached_property
    def importances(self) -> tuple[Scores, HeadScores]:
        """The importance of channels (MoEBERT, equation 4) and of heads (Michel et al., 2019)."""
        return channel_and_head_importance(self.model, self.batches, self.loss)


@dataclass(frozen=True)
class Order:
    """The functions that score channels and heads."""

    channels: Callable[[OrderInputs], Scores]
    heads: Callable[[OrderInputs], HeadScores]


def by_reconstruction(inputs: OrderInputs) -> Scores:
    """Forward selection of the channels that reconstruct the block's output, `supernet.order.reconstruction`."""
    moments = iter(of_block for of_layer in inputs.moments.blocks() for of_block in of_layer)
    return _of_blocks(
        inputs, lambda block: _descending(forward_selection(next(moments), block.project.weight.detach().cpu()))
    )


def heads_by_reconstruction(inputs: OrderInputs) -> HeadScores:
    """Forward selection of the heads that reconstruct the attention's output."""
    moments = inputs.moments.attentions()
    output = family_of(inputs.model).output
    weights = (part(layer, output).weight.detach().cpu() for layer in encoder_layers(inputs.model))
    return [
        _descending(forward_selection_of_heads(of_layer, weight_DE, inputs.heads))
        for of_layer, weight_DE in zip(moments, weights, strict=True)
    ]


def by_magnitude(inputs: OrderInputs) -> Scores:
    """The norm of a channel's weights in `expand` times the norm of its weights in `project`."""
    return _of_blocks(
        inputs, lambda block: (block.expand.weight.norm(dim=1) * block.project.weight.norm(dim=0)).detach().cpu()
    )


def heads_by_magnitude(inputs: OrderInputs) -> HeadScores:
    """The norm of a head's weights in the value projection times the norm of those in the output projection."""
    family = family_of(inputs.model)
    scores = []
    for layer in encoder_layers(inputs.model):
        value_HSD = part(layer, family.value).weight.detach().unflatten(0, (inputs.heads, -1))
        output_DHS = part(layer, family.output).weight.detach().unflatten(1, (inputs.heads, -1))
        scores.append((value_HSD.norm(dim=(1, 2)) * output_DHS.norm(dim=(0, 2))).cpu())
    return scores


def at_random(inputs: OrderInputs) -> Scores:
    """A random order, for comparison."""
    generator = torch.Generator().manual_seed(inputs.seed)
    return _of_blocks(inputs, lambda block: torch.rand(block.expand.out_features, generator=generator))


def heads_at_random(inputs: OrderInputs) -> HeadScores:
    """A random order, for comparison."""
    generator = torch.Generator().manual_seed(inputs.seed + 1)
    return [torch.rand(inputs.heads, generator=generator) for _ in encoder_layers(inputs.model)]


def _of_blocks(inputs: OrderInputs, score: Callable[[Any], Tensor]) -> Scores:
    """The scores that a function gives the channels of each block, called in the order of the blocks."""
    return [[score(block) for block in layer.ffn] for layer in encoder_layers(inputs.model)]


def _descending(order_E: Tensor) -> Tensor:
    """Scores that put the channels or heads into this order."""
    scores_E = torch.empty(len(order_E))
    scores_E[order_E] = torch.arange(len(order_E), 0, -1).float()
    return scores_E


ORDERS: dict[str, Order] = {
    "importance": Order(lambda inputs: inputs.importances[0], lambda inputs: inputs.importances[1]),
    "reconstruction": Order(by_reconstruction, heads_by_reconstruction),
    "magnitude": Order(by_magnitude, heads_by_magnitude),
    "random": Order(at_random, heads_at_random),
    # The order in which the warm-up has left them, as EfficientBERT slices them.
    "unsorted": Order(
        lambda inputs: _of_blocks(inputs, lambda block: _descending(torch.arange(block.expand.out_features))),
        lambda inputs: [_descending(torch.arange(inputs.heads)) for _ in encoder_layers(inputs.model)],
    ),
}
