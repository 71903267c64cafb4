"""Structured pruning: the most important attention heads and FFN channels of a whole BERT, and nothing else of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from distill.objectives.outputs import Batch
from search_spaces.architecture import Architecture, Base, Genes
from search_spaces.errors import UserError
from supernet.build import HEADS, base_of_teacher, config_of, from_teacher, head_of, load_weights
from supernet.order.importance import allocate_by_importance, mask_importance, summed_loss

ATTENTION_INPUTS = ("query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias")


class PruningError(UserError, ValueError):
    """A model cannot be pruned to this share, or the options of the command do not fit together."""


@dataclass(frozen=True)
class Kept:
    """For every layer the indices of the attention heads and of the FFN's channels that are kept, both ascending."""

    heads: tuple[tuple[int, ...], ...]
    channels: tuple[tuple[int, ...], ...]


def layer_params(base: Base, heads: int, channels: int) -> int:
    """The parameters of a layer with so many heads and channels, biases and LayerNorms included."""
    head, channel = _unit_params(base)
    return heads * head + channels * channel + 6 * base.width


def _unit_params(base: Base) -> tuple[int, int]:
    """The parameters of a head (of its query, key, value and output maps) and of a channel."""
    size = base.width // base.heads
    return size * (4 * base.width + 3), 2 * base.width + 1


def choose(of_heads: Sequence[Tensor], of_channels: Sequence[Tensor], base: Base, share: Fraction) -> Kept:
    """Keep what is most important, until the encoder has no more than a share of its parameters.

    Heads compete with the heads of all layers, and channels with all channels, by their importance divided by the l2
    norm over their layer (Michel et al., 2019). Of the heads that same share is kept, rounded down, and as many
    channels as then fit: by importance per parameter, heads and channels together, no head might be left. Every layer
    keeps at least its most important channel, and may lose all of its heads. The encoder's parameters are those of its
    layers, without embeddings and pooler, as MiniMoE's 15 to 3 % count them.

    Args:
        of_heads, of_channels: the importances of every layer's heads (heads,) and channels (inner,).

    Raises:
        PruningError: the share is too small for one channel in each layer.
    """
    head, channel = _unit_params(base)
    whole, least = (base.depth * layer_params(base, *sizes) for sizes in ((base.heads, base.inner), (0, 1)))
    heads = share.numerator * base.depth * base.heads // share.denominator
    left = share.numerator * whole // share.denominator - least - heads * head
    if left < 0:
        raise PruningError(f"{heads} heads and a channel in every layer are more than {float(share):.2%}; keep more")
    channels = base.depth + left // channel
    return Kept(_most_important(of_heads, heads, 0), _most_important(of_channels, channels, 1))


def _most_important(scores: Sequence[Tensor], total: int, least: int) -> tuple[tuple[int, ...], ...]:
    """For every layer the indices of those that belong to the `total` most important ones of all layers, ascending; at
    least so many of each layer.
    """
    of_layers = [normalize(of_layer, dim=0) for of_layer in scores]
    counts = allocate_by_importance(of_layers, total, least)
    orders = [torch.argsort(of_layer, descending=True, stable=True).tolist() for of_layer in of_layers]
    return tuple(tuple(sorted(order[:count])) for order, count in zip(orders, counts, strict=True))


def prune(dense: PreTrainedModel, kept: Kept) -> PreTrainedModel:
    """The model in eval mode with only these heads and channels; it computes what `dense` does with the others masked.

    Args:
        dense: a BERT with any head.

    Raises:
        distill.training.teacher.TeacherError: the activation is not among the operations.
    """
    base, graph = base_of_teacher(dense.config)
    genes = [Genes(graph, expansion=Fraction(len(channels), base.inner)) for channels in kept.channels]
    config = config_of(Architecture(base, tuple(genes)), dense.config.num_labels, dense.config)
    if any(len(heads) < base.heads for heads in kept.heads):
        config.attention_heads = [len(heads) for heads in kept.heads]
    pruned = HEADS[head_of(dense)](config)
    weights = from_teacher(dense, stack=1).state_dict()
    prefix = next(name for name in weights if "encoder.layer.0." in name).partition("encoder.layer.")[0]
    size = base.width // base.heads
    for number, (heads, channels) in enumerate(zip(kept.heads, kept.channels, strict=True)):
        layer = f"{prefix}encoder.layer.{number}."
        of_heads = torch.tensor([head * size + offset for head in heads for offset in range(size)], dtype=torch.long)
        selected = {f"attention.self.{name}": (0, of_heads) for name in ATTENTION_INPUTS}
        selected["attention.output.dense.weight"] = (1, of_heads)
        of_channels = torch.tensor(channels)
        selected |= {f"ffn.0.expand.{name}": (0, of_channels) for name in ("weight", "bias")}
        selected["ffn.0.project.weight"] = (1, of_channels)
        for name, (dimension, indices) in selected.items():
            tensor = weights.pop(layer + name)
            if len(indices):
                weights[layer + name] = tensor.index_select(dimension, indices)
    load_weights(pruned, weights)
    return pruned.eval()


def pruned_to(dense: PreTrainedModel, batches: Iterable[Batch], share: Fraction) -> PreTrainedModel:
    """The model with the heads and channels that are most important for the labels of these training batches.

    Raises:
        PruningError: the share is too small.
        distill.training.teacher.TeacherError: the activation is not among the operations.
    """
    of_heads, of_channels = mask_importance(from_teacher(dense, stack=1).to(dense.device), batches, summed_loss)
    return prune(dense, choose(of_heads, of_channels, base_of_teacher(dense.config)[0], share))


def encoder_params(model: PreTrainedModel) -> int:
    """The parameters of a model's layers, without embeddings, pooler and head."""
    return sum(parameter.numel() for parameter in model.base_model.encoder.parameters())
