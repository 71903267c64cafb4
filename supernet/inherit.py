"""What a candidate takes over from the supernet: a pure function from weights to weights."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from search_spaces.architecture import DENSE, Architecture, Base, Genes
from search_spaces.cost import project_width
from supernet.experts.split import expert_channels, new_gate, new_head, routing_table

_LAYER = re.compile(r"((?:.*\.)?encoder\.layer\.(\d+)\.)(.+)")
_BLOCK = re.compile(r"ffn\.(\d+)\.(\w+)\.(weight|bias)")
_ATTENTION = re.compile(r"attention\.(?:self\.(?:query|key|value)|output\.dense)\.(?:weight|bias)")


def inherit(
    weights: Mapping[str, Tensor], architecture: Architecture, frequencies: Tensor | None = None
) -> dict[str, Tensor]:
    """The weights with which a candidate starts.

    Lowest blocks first, leading inner channels; attention, norms, embeddings and heads whole (EfficientBERT,
    section 3.2: stacked FFNs are sliced from bottom to top, linear operations from left to right). A gate of the graph
    that the supernet does not have starts as the constant one (weight 0, bias 1), with which `mul(f,gate(x))` is f.

    Experts take the channels of `supernet.experts.split.expert_channels`, and all of them the bias of `project`. A
    router's weight is the leading rows of the supernet's where that has one; a table of the supernet's stays as it is.
    Experts in attention start as copies, those of a head anew.

    Args:
        weights: state dict of a dense supernet of the same base, with at least as many blocks in every layer.
        architecture: of the candidate.
        frequencies: of token ids (vocabulary,), for balanced_hash routing.

    Returns:
        Independent copies, complete for a model built from `architecture` with the supernet's head.

    Raises:
        ValueError: the supernet has experts, or too few blocks or channels for a layer, or frequencies are missing.
    """
    base = architecture.base
    layers = architecture.layers
    inherited = {}
    blocks = [0] * len(layers)
    for name, tensor in weights.items():
        if tensor.dim() == 3 and _LAYER.fullmatch(name):
            raise ValueError(f"the supernet must be dense: {name} is of {len(tensor)} experts")
    for name, tensor in weights.items():
        match = _LAYER.fullmatch(name)
        if not match:
            inherited[name] = tensor.clone()
            continue
        layer = int(match[2])
        if layer >= len(layers):
            raise ValueError(f"the supernet has a layer {layer}; the architecture has {len(layers)} layers")
        block = _BLOCK.fullmatch(match[3])
        if not block:
            copies = base.attention_experts if _ATTENTION.fullmatch(match[3]) else 1
            inherited[name] = _copies(tensor, copies)
            continue
        genes, number, part, kind = layers[layer], int(block[1]), block[2], block[3]
        if number >= genes.stack or part == "router" or (part == "gate" and not genes.graph.gated):
            continue
        blocks[layer] = max(blocks[layer], number + 1)
        tensor = _of_block(tensor, base, genes, part, kind, name)
        inherited[name] = tensor
        gate = name.replace(".expand.", ".gate.")
        if part == "expand" and genes.graph.gated and gate not in weights:
            inherited[gate] = torch.full_like(tensor, float(kind == "bias"))
    prefix = next(match[1] for name in weights if (match := _LAYER.fullmatch(name)))
    prefix = prefix[: prefix.rindex("encoder.layer.")] + "encoder.layer."
    for layer, genes in enumerate(layers):
        if blocks[layer] < genes.stack:
            raise ValueError(f"layers[{layer}].stack is {genes.stack}; the supernet has {blocks[layer]} blocks there")
        inherited |= _gates(weights, base, genes, f"{prefix}{layer}.", layer)
    if base.head_experts > 1 and "classifier.weight" in inherited:
        classifier = inherited.pop("classifier.weight")
        del inherited["classifier.bias"]
        new = new_head(base.head_experts, classifier)
        inherited |= {f"classifier.{name}": tensor for name, tensor in new.items()}
    known = any(name.endswith(".router.table") for name in weights)
    return inherited if known else tables(architecture, prefix, frequencies) | inherited


def _of_block(tensor: Tensor, base: Base, genes: Genes, part: str, kind: str, name: str) -> Tensor:
    """A block's tensor for these genes: of one block, or stacked for its experts."""
    count = genes.experts.count
    inner, projected = genes.inner(base), project_width(base, genes)
    dimension = {"expand": 0, "gate": 0, "project": None if kind == "bias" else 1}.get(part)
    if dimension is None:
        return _copies(tensor, count if part == "project" else 1)
    if count == 1:
        return _leading(tensor, dimension, inner if dimension == 0 else projected, name).clone()
    channels_EC = expert_channels(base, genes)
    if dimension == 1:
        # With mismatch "wide", channels of x beyond the inner ones pass on to `project` in their own places.
        passed_C = torch.arange(inner, max(inner, projected)).expand(count, -1)
        channels_EC = torch.cat((channels_EC, passed_C), dim=1)[:, :projected]
    _leading(tensor, dimension, int(channels_EC.max()) + 1, name)
    channels_EC = channels_EC.to(tensor.device)
    return tensor[channels_EC] if dimension == 0 else tensor[:, channels_EC].transpose(0, 1).contiguous()


def tables(architecture: Architecture, prefix: str, frequencies: Tensor | None = None) -> dict[str, Tensor]:
    """The routing tables of the layers with hash routing; `prefix` is what names have before the layer's number."""
    return {
        f"{prefix}{layer}.router.table": routing_table(genes.experts, architecture.base.vocabulary, layer, frequencies)
        for layer, genes in enumerate(architecture.layers)
        if genes.experts != DENSE and not genes.experts.gated
    }


def _gates(weights: Mapping[str, Tensor], base: Base, genes: Genes, prefix: str, layer: int) -> dict[str, Tensor]:
    """The weights of a layer's routers that learn, of its FFN and of its attention."""
    experts = genes.experts
    like = weights[f"{prefix}ffn.0.expand.weight"]
    result = {}
    wanted = {f"{prefix}ffn.{block}.router.weight": block + 1 for block in range(genes.stack) if experts.gated}
    gates = {name: (experts.count, place) for name, place in wanted.items()}
    if base.attention_experts > 1:
        gates[f"{prefix}attention.router.weight"] = base.attention_experts, 0
    for name, (count, place) in gates.items():
        if name in weights:
            result[name] = _leading(weights[name], 0, count, name).clone()
        else:
            # A number of its own for every layer, block and attention.
            result[name] = new_gate(count, base.width, 64 * layer + place, like)
    return result


def _copies(tensor: Tensor, count: int) -> Tensor:
    """`tensor` itself for one, else that many copies, stacked."""
    return tensor.clone() if count == 1 else tensor.expand(count, *tensor.shape).clone()


def _leading(tensor: Tensor, dimension: int, count: int, name: str) -> Tensor:
    if tensor.shape[dimension] < count:
        raise ValueError(f"{name} has {tensor.shape[dimension]} channels; the architecture needs {count}")
    return tensor.narrow(dimension, 0, count)
