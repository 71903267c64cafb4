"""Weight inheritance: the weights of a candidate as a pure function of the supernet's."""

from collections.abc import Mapping

import torch
from torch import Tensor

from distill.encoders.family import ATTENTION_GATE, BLOCK_GATE, EXPERT_HEAD, TABLE, family_of_weights, in_block
from distill.encoders.student.anatomy import CHANNELS, HEADS, Family
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.cost import project_width
from search_spaces.layer import FFN, Attention, Layer
from supernet.embedding import of_rank
from supernet.experts.routers import initial_gate, initial_head, routing_tables


def inherit(
    weights: Mapping[str, Tensor], architecture: Architecture, frequencies: Tensor | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """The initial weights of a candidate.

    A layer inherits the supernet's leading heads, its lowest blocks and their leading inner channels; one that is left
    out inherits nothing. Norms, embeddings and prediction heads are inherited completely (EfficientBERT, section 3.2:
    stacked FFNs are sliced from bottom to top, linear operations from left to right); of a word embedding of lower
    rank, its rows are projected onto their `principal_axes`. A `gate` that the supernet does not have is initialized
    to the constant one (weight 0, bias 1), so that `mul(f,gate(x))` equals f.

    Each expert inherits the channels that `expert_channels` gives it, and the whole bias of `project`. A learned router
    inherits the leading rows of the supernet's, or gets new weights if the supernet has none. Routing tables of the
    supernet are inherited unchanged. Attention experts start as copies; the experts of a head get new weights.

    Args:
        weights: state dict of a dense supernet on the same base, with at least as many blocks in every layer.
        architecture: the candidate's architecture.
        frequencies: frequency of every token id (vocabulary,), for routings that need it, and for a word embedding of
            lower rank.
        seed: seed for routing tables and for new gates and heads.

    Returns:
        A complete state dict of copies for a model that is built from `architecture` with the supernet's head.

    Raises:
        ValueError: frequencies are missing, the supernet has experts, extra layers, or too few channels or blocks, or
            its word embedding is of too low a rank; or a gate is missing in a family without biases.
    """
    base, layers = architecture.base, architecture.layers
    family = family_of_weights(weights)
    for name, tensor in weights.items():
        if tensor.dim() == 3 and family.split(name):
            raise ValueError(f"the supernet must be dense: {name} is of {len(tensor)} experts")
    inherited: dict[str, Tensor] = {}
    block_counts = [0] * len(layers)
    projected_widths = [project_width(base, ffn) for ffn in architecture.ffns]
    for name, tensor in weights.items():
        parts = family.split(name)
        if parts is None:
            inherited[name] = tensor.clone()
            continue
        _, layer, inside = parts
        if layer >= len(layers):
            raise ValueError(f"the supernet has a layer {layer}; the architecture has {len(layers)} layers")
        if layers[layer].left_out:
            continue
        if (block := in_block(inside)) is None:
            attention = layers[layer].attention
            if (kept := _leading_heads(family, tensor, attention, base, inside, name)) is not None:
                inherited[name] = _copies(kept, attention.experts if _of_attention(family, inside) else 1)
            continue
        ffn, (number, module, kind) = layers[layer].ffn, block
        if number >= ffn.stack or module == "router" or (module == "gate" and not ffn.graph.gated):
            continue
        block_counts[layer] = max(block_counts[layer], number + 1)
        _, dimension = family.slices(number).get(inside, (CHANNELS, None))
        copies = ffn.experts.count if module == "project" else 1
        inherited[name] = tensor = (
            _copies(tensor, copies)
            if dimension is None
            else _channels(tensor, base, ffn, projected_widths[layer], dimension, name)
        )
        gate = name.replace(".expand.", ".gate.")
        if module == "expand" and ffn.graph.gated and gate not in weights:
            inherited[gate] = _constant_gate(tensor, kind, layer, name.replace(".weight", ".bias") in weights)
    prefix = family.prefix(weights)
    has_attentions = any(family.query in name for name in weights)
    before = prefix.removesuffix(f"{family.layers}.")
    for layer, ffn in enumerate(architecture.ffns):
        if (count := block_counts[layer]) < ffn.stack:
            raise ValueError(f"layers[{layer}].ffn.stack is {ffn.stack}; the supernet has {count} blocks there")
        query = f"{prefix}{layer}.{family.query}.weight"
        if layers[layer].attention.heads and has_attentions and query not in inherited:
            raise ValueError(f"layers[{layer}].attention.heads is above 0; the supernet has none there")
        inherited |= _gates(weights, base, layers[layer], f"{prefix}{layer}.", layer, seed)
    inherited = _outside_layers(inherited, architecture, family, before, frequencies, seed)
    if not architecture.has_experts or any(name.endswith(f".{TABLE}") for name in weights):
        return inherited
    return routing_tables(architecture, prefix, frequencies, seed) | inherited


def _constant_gate(like: Tensor, kind: str, layer: int, has_bias: bool) -> Tensor:
    """The weight or the bias of a gate that is always 1. Raises ValueError if it has no bias."""
    if not has_bias:
        raise ValueError(f"layers[{layer}].ffn.graph: the supernet has no gate, nor biases to start one")
    return torch.full_like(like, float(kind == "bias"))


def _outside_layers(
    weights: dict[str, Tensor],
    architecture: Architecture,
    family: Family,
    prefix: str,
    frequencies: Tensor | None,
    seed: int,
) -> dict[str, Tensor]:
    """The weights with the word embedding and the head of this architecture.

    Args:
        prefix: what stands before the names of the base model.
    """
    weights = of_rank(weights, prefix, family, architecture.embedding.rank, frequencies, architecture.base.tied)
    if architecture.head.experts > 1 and f"{EXPERT_HEAD}weight" in weights:
        classifier = weights.pop(f"{EXPERT_HEAD}weight")
        del weights[f"{EXPERT_HEAD}bias"]
        head = initial_head(architecture.head.experts, classifier, seed)
        weights |= {EXPERT_HEAD + name: tensor for name, tensor in head.items()}
    return weights


def _of_attention(family: Family, inside: str) -> bool:
    """Whether a tensor of a layer is of a linear map of its attention."""
    return inside.rpartition(".")[0] in (family.query, family.key, family.value, family.output)


def expert_channels(base: Base, ffn: FFN) -> Tensor:
    """The indices of the channels of each expert of a layer, (E, m), in a dense FFN sorted by importance.

    Expert i has the s channels that all experts share and, of the others, every E-th starting with the i-th (MoEBERT,
    section 3.1). If the graph combines inner channels with the leading channels of x, an expert pairs its channels by
    their position in the expert; for the shared ones this is the same as in the dense FFN.
    """
    inner, shared, count = ffn.inner(base), ffn.shared_channels(base), ffn.experts.count
    others = shared + torch.arange(inner - shared) * count
    rows = [torch.cat((torch.arange(shared), others + expert)) for expert in range(count)]
    return torch.stack(rows)


def _channels(tensor: Tensor, base: Base, ffn: FFN, projected: int, dimension: int, name: str) -> Tensor:
    """The channels of a block's tensor that this FFN has; those of several experts are stacked along a new first
    dimension.

    Args:
        projected: input width of `project`.
        dimension: that of the channels: 0 of `expand` and `gate`, 1 of `project`.
        name: the tensor's name in the supernet, for error messages.
    """
    count = ffn.experts.count
    inner = ffn.inner(base)
    if count == 1:
        return _leading(tensor, dimension, inner if dimension == 0 else projected, name).clone()
    channels_EC = expert_channels(base, ffn)
    if dimension == 1:
        # With mismatch "wide", the channels of x beyond the inner width are passed to `project` at their own positions.
        passed_C = torch.arange(inner, max(inner, projected)).expand(count, -1)
        channels_EC = torch.cat((channels_EC, passed_C), dim=1)[:, :projected]
    _leading(tensor, dimension, int(channels_EC.max()) + 1, name)  # raises if the tensor has too few channels
    channels_EC = channels_EC.to(tensor.device)
    return tensor[channels_EC] if dimension == 0 else tensor[:, channels_EC].transpose(0, 1).contiguous()


def _gates(
    weights: Mapping[str, Tensor], base: Base, layer: Layer, prefix: str, index: int, seed: int
) -> dict[str, Tensor]:
    """The weights (E, width) of a layer's learned routers: those of the FFN's blocks and of the attention."""
    ffn, experts = layer.ffn, layer.ffn.experts
    # For each gate: its number of experts, and its index among the gates of the layer, which selects its random stream.
    gates: dict[str, tuple[int, int]] = {}
    if experts.gated:
        gates = {prefix + BLOCK_GATE.format(block): (experts.count, block + 1) for block in range(ffn.stack)}
    if layer.attention.experts > 1:
        gates[prefix + ATTENTION_GATE] = (layer.attention.experts, 0)
    if not gates:
        return {}
    like = next(tensor for name, tensor in weights.items() if name.startswith(prefix))
    return {
        name: _leading(weights[name], 0, count, name).clone()
        if name in weights
        else initial_gate(count, base.width, 64 * index + number, like, seed)
        for name, (count, number) in gates.items()
    }


def attention_slice(weights: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """The weights of a model with only those leading heads, or first experts, of every attention that this architecture
    has. A single expert is a plain attention, without a gate. Tensors of other modules are unchanged.

    Args:
        weights: state dict of a model on the same base with at least as many experts in every attention.
    """
    result, family = {}, family_of_weights(weights)
    for name, tensor in weights.items():
        parts = family.split(name)
        if parts is None:
            result[name] = tensor
            continue
        inside, attention = parts[2], architecture.layers[parts[1]].attention
        if inside == ATTENTION_GATE:
            if attention.experts > 1:
                result[name] = tensor[: attention.experts]
            continue
        kept: Tensor | None = tensor
        if architecture.layers[parts[1]].left_out:
            continue
        if _of_attention(family, inside) and tensor.dim() == (3 if inside.endswith("weight") else 2):
            kept = tensor[0] if attention.experts == 1 else tensor[: attention.experts]
        if attention.experts == 1 and kept is not None:
            kept = _leading_heads(family, kept, attention, architecture.base, inside, name)
        if kept is not None:
            result[name] = kept
    return result


def _leading_heads(
    family: Family, tensor: Tensor, attention: Attention, base: Base, inside: str, name: str
) -> Tensor | None:
    """The part of a layer's tensor that belongs to the leading heads; None if none are left. Tensors of other modules
    are unchanged.
    """
    unit, dimension = family.slices().get(inside, ("", 0))
    channels = attention.heads * base.width // base.heads
    if unit != HEADS or tensor.shape[dimension] == channels:
        return tensor
    return _leading(tensor, dimension, channels, name) if channels else None


def _copies(tensor: Tensor, count: int) -> Tensor:
    """A copy of `tensor`, or `count` copies stacked along a new first dimension if `count` is above 1."""
    return tensor.clone() if count == 1 else tensor.expand(count, *tensor.shape).clone()


def _leading(tensor: Tensor, dimension: int, count: int, name: str) -> Tensor:
    """The first `count` channels of `tensor` along a dimension. Raises ValueError if there are fewer."""
    if tensor.shape[dimension] < count:
        raise ValueError(f"{name} has {tensor.shape[dimension]} channels; the architecture needs {count}")
    return tensor.narrow(dimension, 0, count)
