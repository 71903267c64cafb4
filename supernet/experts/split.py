"""Split the feed-forward networks of a dense encoder into experts (MoEBERT, section 3.1)."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from distill.objectives.outputs import Batch
from distill.tasks.types import task_type_of
from search_spaces.architecture import Architecture, ArchitectureError
from search_spaces.layer import DENSE, FFN, Experts
from supernet.build import base_of_teacher, build, from_teacher
from supernet.inherit import inherit
from supernet.order.importance import neuron_importance, sort_channels, summed_loss


def mixture_architecture(
    config: PretrainedConfig,
    experts: int,
    *,
    width: int | None = None,
    shared: int | None = None,
    copy: bool = False,
    routing: str = "hash",
    top_k: int = 1,
    capacity: Fraction | None = None,
    attention_experts: int = 1,
    head_experts: int = 1,
    gate_scale: str = "relative",
) -> Architecture:
    """The architecture of an encoder of this configuration whose FFNs are split into `experts` experts.

    Args:
        width: inner channels of an expert; by default the dense FFN's divided by the number of experts, or with `copy`
            all of them.
        shared: number of channels that all experts have in common; by default 2/3 of the width (MoEBERT), or with
            `copy` all of them.
        routing, top_k, capacity: as in `Experts`.
        attention_experts, head_experts: the experts of every attention and of the head, which starts with random
            weights if it has several.
        gate_scale: as in `Base`.

    Raises:
        ArchitectureError: `width` or `shared` is out of its range, or the experts are invalid on this base.
        distill.training.teacher.TeacherError: the configuration's activation is not among the operations.
    """
    base, graph = base_of_teacher(config)
    base = replace(base, gate_scale=gate_scale)
    if width is None:
        width = base.inner if copy else base.inner // max(1, experts)
    for name, value, smallest, largest in (("width", width, 1, base.inner), ("shared", shared, 0, width)):
        if value is not None and not smallest <= value <= largest:
            raise ArchitectureError(f"{name}: must be from {smallest} to {largest:,} channels, not {value:,}")
    if shared is None:
        shared = width if copy else width * 2 // 3
    mixture = Experts(experts, Fraction(shared, width), routing, top_k, capacity) if experts != 1 else DENSE
    ffn = FFN(graph, 1, Fraction(width, base.inner), mixture)
    return Architecture.of_ffns(base, (ffn,) * base.depth, attention_experts, head_experts)


def channel_scores(model: PreTrainedModel, batches: Sequence[Batch], order: str, seed: int = 0) -> list[list[Tensor]]:
    """The scores of the channels, `[layer][block]` -> (inner,); experts receive channels in descending order of these.

    Args:
        batches: labeled training data.
        order: "importance" or "copy" for MoEBERT's equation 4 on these batches, "inverse" for its negative, "random"
            for random scores.
        seed: seed of the random scores.
    """
    if order == "random":
        generator = torch.Generator().manual_seed(seed)
        base, _ = base_of_teacher(model.config)
        shapes = [(1, base.inner)] * base.depth
        return [list(torch.rand(shape, generator=generator)) for shape in shapes]
    scores = neuron_importance(from_teacher(model, stack=1), batches, summed_loss)
    return [[-score for score in layer] for layer in scores] if order == "inverse" else scores


def split_model(
    dense: PreTrainedModel,
    architecture: Architecture,
    scores: list[list[Tensor]],
    frequencies: Tensor | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Split a dense model into a mixture of experts of this architecture; returns the mixture in eval mode.

    Args:
        scores: experts receive channels in descending order of these scores, see `channel_scores`.
        frequencies: frequency of every token id (vocabulary,), for routings that need it.
        seed: seed for routing tables and gates.
    """
    supernet = from_teacher(dense, stack=1)
    weights = sort_channels(supernet.state_dict(), scores, supernet.config)
    inherited = inherit(weights, architecture, frequencies, seed)
    return build(architecture, task_type_of(dense), dense.config.num_labels, dense.config, inherited).eval()
