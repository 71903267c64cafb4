"""Split the feed-forward networks of a dense BERT into experts (MoEBERT, section 3.1)."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from distill.objectives.outputs import Batch
from search_spaces.architecture import DENSE, Architecture, ArchitectureError, Experts
from supernet.build import base_of_teacher, build, from_teacher, load_weights
from supernet.importance import neuron_importance, sort_channels, summed_loss
from supernet.inherit import inherit


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
) -> Architecture:
    """The architecture of a BERT of this configuration with its FFNs split into `experts`.

    Args:
        width: inner channels of an expert; by default as many as make up the dense FFN together, or with `copy` all.
        shared: those that are the same in all experts; by default 2/3 of the width (MoEBERT), or with `copy` all.
        routing, top_k, capacity: as in `Experts`.

    Raises:
        ArchitectureError: the widths do not fit.
        distill.training.teacher.TeacherError: the configuration's activation is not among the operations.
    """
    base, graph = base_of_teacher(config)
    base = replace(base, attention_experts=attention_experts)
    if width is None:
        width = base.inner if copy else base.inner // max(1, experts)
    for name, value, smallest, largest in (("width", width, 1, base.inner), ("shared", shared, 0, width)):
        if value is not None and not smallest <= value <= largest:
            raise ArchitectureError(f"--{name}: from {smallest} to {largest:,} channels, not {value:,}")
    if shared is None:
        shared = width if copy else width * 2 // 3
    genes = Experts(experts, Fraction(shared, width), routing, top_k, capacity) if experts != 1 else DENSE
    return Architecture.uniform(base, graph, expansion=Fraction(width, base.inner), experts=genes)


def channel_scores(model: PreTrainedModel, batches: Sequence[Batch], order: str, seed: int = 0) -> list[list[Tensor]]:
    """The scores in whose descending order channels are dealt out to experts: `[layer][block]` -> (inner,).

    Args:
        batches: labelled training data.
        order: "importance" and "copy" are MoEBERT's equation 4 on these batches, "inverse" its reverse, "random" noise.
        seed: of the noise.
    """
    if order == "random":
        generator = torch.Generator().manual_seed(seed)
        shapes = [(1, model.config.intermediate_size)] * model.config.num_hidden_layers
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
    """The mixture of this architecture with the dense model's weights, in eval mode.

    Args:
        scores: channels are dealt out to the experts in their descending order, see `channel_scores`.
        frequencies: of token ids (vocabulary,), for routings that need them.
        seed: what routing tables and gates are drawn from.
    """
    supernet = from_teacher(dense, stack=1)
    weights = sort_channels(supernet.state_dict(), scores, supernet.config)
    model = build(architecture, labels=dense.config.num_labels, like=dense.config)
    load_weights(model, inherit(weights, architecture, frequencies, seed))
    return model.eval()
