"""Structured pruning: the most important attention heads and FFN channels of an encoder, and nothing else of it."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.heads import heads_of
from distill.encoders.parts import encoder_layers, selected
from distill.encoders.student.anatomy import CHANNELS, HEADS
from distill.tasks.types import task_type_of
from foundation.errors import UserError
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.graph import GELU, FFNGraph
from search_spaces.layer import FFN, Attention, Layer
from supernet.build import base_of_teacher, build, from_teacher
from supernet.order.importance import allocate_by_importance, channels_of_heads


class PruningError(UserError, ValueError):
    """A model cannot be pruned to so small a fraction."""


@dataclass(frozen=True)
class Kept:
    """For every layer the indices of the attention heads and of the FFN's channels that are kept, both ascending."""

    heads: tuple[tuple[int, ...], ...]
    channels: tuple[tuple[int, ...], ...]

    def architecture(self, base: Base, graph: FFNGraph) -> Architecture:
        """The architecture of the pruned model."""
        layers = (
            Layer(Attention(len(heads)), FFN(graph, expansion=Fraction(len(channels), base.inner)))
            for heads, channels in zip(self.heads, self.channels, strict=True)
        )
        return Architecture(base, tuple(layers))


def choose(
    head_importance: Sequence[Tensor],
    channel_importance: Sequence[Tensor],
    base: Base,
    fraction: Fraction,
    graph: FFNGraph = GELU,
) -> Kept:
    """Keep what is most important, until the encoder has no more than a fraction of its parameters.

    Heads compete with the heads of all layers, and channels with all channels, by their importance divided by the l2
    norm over their layer (Michel et al., 2019). Of the heads that same fraction is kept, rounded down, and as many
    channels as then fit. Every layer keeps at least its most important channel, and may lose all of its heads. The
    encoder's parameters are those of its layers, without embeddings and pooler, as MiniMoE counts the sizes of its
    pruned students (15, 10, 5 and 3 %).

    Args:
        head_importance: of every layer the importance of its heads (heads,).
        channel_importance: of every layer the importance of its channels (inner,).
        base: that of the model.
        fraction: of the parameters of the encoder's layers, above 0 and at most 1.
        graph: that of the model's FFNs.

    Raises:
        PruningError: the fraction is too small for one channel in each layer.
    """
    heads, channels = _numbers_kept(base, graph, fraction)
    if channels < base.depth:
        steps = (Fraction(step, 10_000) for step in range(int(10_000 * fraction) + 1, 10_001))
        enough = next(larger for larger in steps if _numbers_kept(base, graph, larger)[1] >= base.depth)
        raise PruningError(
            f"{float(100 * fraction):g}%: too few parameters for {heads} head{'s' * (heads != 1)} and one neuron in "
            f"every layer; the next larger fraction that works is {float(100 * enough):g}%"
        )
    return Kept(_most_important(head_importance, heads, 0), _most_important(channel_importance, channels, 1))


def _numbers_kept(base: Base, graph: FFNGraph, fraction: Fraction) -> tuple[int, int]:
    """How many heads and channels of all layers a fraction leaves; if it is too small, fewer channels than layers."""

    def params(heads: int, channels: int) -> int:
        ffn = FFN(graph, expansion=Fraction(channels, base.inner))
        return cost.layer_params(base, Layer(Attention(heads), ffn))

    head, channel = params(1, 1) - params(0, 1), params(0, 2) - params(0, 1)
    rest = params(0, 1) - channel  # LayerNorms, and the biases of the output projections
    heads = int(fraction * base.depth * base.heads)
    budget = int(fraction * base.depth * (base.heads * head + base.inner * channel + rest))
    return heads, (budget - base.depth * rest - heads * head) // channel


def _most_important(scores: Sequence[Tensor], total: int, least: int) -> tuple[tuple[int, ...], ...]:
    """For every layer the indices of those that belong to the `total` most important ones of all layers, ascending; at
    least this many of each layer.
    """
    of_layers = [normalize(of_layer, dim=0) for of_layer in scores]
    counts = allocate_by_importance(of_layers, total, least)
    orders = [torch.argsort(of_layer, descending=True, stable=True).tolist() for of_layer in of_layers]
    return tuple(tuple(sorted(order[:count])) for order, count in zip(orders, counts, strict=True))


def prune(dense: PreTrainedModel, kept: Kept) -> PreTrainedModel:
    """The model in eval mode, on the CPU, with only these heads and channels; it computes what `dense` does with the
    others masked.

    Args:
        dense: an encoder with any head.

    Returns:
        A model of `distill.encoders.student` with the same kind of head, whose configuration says which attention heads
        it has.

    Raises:
        distill.training.teacher.TeacherError: the activation is not among the operations.
    """
    base, graph = base_of_teacher(dense.config)
    return cut(from_teacher(dense, stack=1), kept, kept.architecture(base, graph))


def cut(whole: PreTrainedModel, kept: Kept, architecture: Architecture) -> PreTrainedModel:
    """The model in eval mode with only these heads and channels of each layer.

    Args:
        whole: a student with one dense block in every layer and any head; its layers may lack heads already.
        kept: indices among the heads and channels that it has.
        architecture: that of the result.
    """
    family, weights = family_of(whole), whole.state_dict()
    prefix = family.prefix(weights)
    size = architecture.base.width // architecture.base.heads
    for number, (heads, channels) in enumerate(zip(kept.heads, kept.channels, strict=True)):
        of_heads = channels_of_heads(torch.tensor(heads, dtype=torch.long), size)
        indices = {CHANNELS: torch.tensor(channels), HEADS: of_heads}
        weights |= selected(family, weights, f"{prefix}{number}.", indices)
        if not heads:
            for name, (unit, _) in family.slices().items():
                if unit == HEADS:
                    weights.pop(f"{prefix}{number}.{name}", None)
    template = copy.deepcopy(whole.config)
    chosen = zip(heads_of(whole.config), kept.heads, strict=True)
    template.kept_heads = [[of_layer[head] for head in heads] for of_layer, heads in chosen]
    return build(architecture, task_type_of(whole), whole.config.num_labels, template, weights).eval()


def encoder_params(model: PreTrainedModel) -> int:
    """The parameters of a model's layers, without embeddings, pooler and head."""
    return sum(parameter.numel() for layer in encoder_layers(model) for parameter in layer.parameters())
