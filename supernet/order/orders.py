"""The orders of inner channels, by their names in a configuration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.encoders.parts import encoder_layers
from distill.objectives.outputs import Batch
from supernet.order.gradients import Loss
from supernet.order.importance import neuron_importance
from supernet.order.moments import block_moments
from supernet.order.reconstruction import forward_selection


@dataclass(frozen=True, eq=False)
class OrderInputs:
    """What an order may be measured on.

    Attributes:
        model: a dense supernet.
        batches: batches of training rows.
        loss: the loss with labels or, if the supernet learned from text, that of its objective.
        sampled_loss: the loss whose gradients give the Fisher information, see `supernet.order.moments.sampled_loss`.
        seed: seed of the random order.
    """

    model: PreTrainedModel
    batches: Sequence[Batch]
    loss: Loss
    sampled_loss: Loss
    seed: int


# `[layer][block]` -> (inner,); the channels of a block are kept in descending order of their scores.
Scores = list[list[Tensor]]


def by_importance(inputs: OrderInputs) -> Scores:
    """MoEBERT's importance (equation 4)."""
    return neuron_importance(inputs.model, inputs.batches, inputs.loss)


def by_reconstruction(inputs: OrderInputs) -> Scores:
    """Forward selection of what reconstructs the block's output, see `supernet.order.reconstruction`."""
    moments = block_moments(inputs.model, inputs.batches, inputs.sampled_loss)
    of_blocks = iter([of_block for of_layer in moments for of_block in of_layer])
    return _block_by_block(
        inputs, lambda block: _descending(forward_selection(next(of_blocks), block.project.weight.detach().cpu()))
    )


def by_magnitude(inputs: OrderInputs) -> Scores:
    """The norm of a channel's weights in `expand` times that of its weights in `project`."""
    return _block_by_block(
        inputs, lambda block: (block.expand.weight.norm(dim=1) * block.project.weight.norm(dim=0)).detach().cpu()
    )


def at_random(inputs: OrderInputs) -> Scores:
    """A random order, for comparison."""
    generator = torch.Generator().manual_seed(inputs.seed)
    return _block_by_block(inputs, lambda block: torch.rand(block.expand.out_features, generator=generator))


def unsorted(inputs: OrderInputs) -> Scores:
    """The order in which the warm-up has left them, as EfficientBERT slices them."""
    return _block_by_block(inputs, lambda block: _descending(torch.arange(block.expand.out_features)))


def _block_by_block(inputs: OrderInputs, score: Callable[[Any], Tensor]) -> Scores:
    """What a function of an `FFNBlock` says of every block, in order."""
    return [[score(block) for block in layer.ffn] for layer in encoder_layers(inputs.model)]


def _descending(order_E: Tensor) -> Tensor:
    """Scores that put the channels into this order."""
    scores_E = torch.empty(len(order_E))
    scores_E[order_E] = torch.arange(len(order_E), 0, -1).float()
    return scores_E


ORDERS: dict[str, Callable[[OrderInputs], Scores]] = {
    "importance": by_importance,
    "reconstruction": by_reconstruction,
    "magnitude": by_magnitude,
    "random": at_random,
    "unsorted": unsorted,
}
