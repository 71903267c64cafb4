"""Weight inheritance: the weights of a candidate as a pure function of the supernet's."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from search_spaces.architecture import Architecture, Genes
from search_spaces.base import Base
from search_spaces.cost import project_width
from supernet.experts.channels import expert_channels
from supernet.experts.routers import initial_gate, initial_head, routing_tables

# "...encoder.layer.3." and the name within the layer.
_LAYER = re.compile(r"((?:.*\.)?encoder\.layer\.(\d+)\.)(.+)")
_BLOCK = re.compile(r"ffn\.(\d+)\.(\w+)\.(weight|bias)")
_ATTENTION = re.compile(r"attention\.(?:self\.(?:query|key|value)|output\.dense)\.(?:weight|bias)")


def inherit(
    weights: Mapping[str, Tensor], architecture: Architecture, frequencies: Tensor | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """The initial weights of a candidate.

    A layer inherits the lowest blocks of the supernet's layer and their leading inner channels. Attention, norms,
    embeddings and heads are inherited completely (EfficientBERT, section 3.2: stacked FFNs are sliced from bottom to
    top, linear operations from left to right). A `gate` that the supernet does not have is initialised to the constant
    one (weight 0, bias 1), so that `mul(f,gate(x))` equals f.

    Each expert inherits the channels that `expert_channels` gives it, and the whole bias of `project`. A learned router
    inherits the leading rows of the supernet's, or gets new weights if the supernet has none. Routing tables of the
    supernet are inherited unchanged. Attention experts start as copies; the experts of a head get new weights.

    Args:
        weights: state dict of a dense supernet on the same base, with at least as many blocks in every layer.
        architecture: the candidate's architecture.
        frequencies: frequency of every token id (vocabulary,), for routings that need it.
        seed: seed for routing tables and for new gates and heads.

    Returns:
        A complete state dict of copies for a model that is built from `architecture` with the supernet's head.

    Raises:
        ValueError: the supernet has experts, or too few blocks or channels for a layer, or frequencies are missing.
    """
    base, layers = architecture.base, architecture.layers
    for name, tensor in weights.items():
        if tensor.dim() == 3 and _LAYER.fullmatch(name):
            raise ValueError(f"the supernet must be dense: {name} is of {len(tensor)} experts")
    inherited: dict[str, Tensor] = {}
    block_counts = [0] * len(layers)
    projected_widths = [project_width(base, genes) for genes in layers]
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
        genes, number, module, kind = layers[layer], int(block[1]), block[2], block[3]
        if number >= genes.stack or module == "router" or (module == "gate" and not genes.graph.gated):
            continue
        block_counts[layer] = max(block_counts[layer], number + 1)
        inherited[name] = tensor = _block_tensor(tensor, base, genes, projected_widths[layer], module, kind, name)
        gate = name.replace(".expand.", ".gate.")
        if module == "expand" and genes.graph.gated and gate not in weights:
            inherited[gate] = torch.full_like(tensor, float(kind == "bias"))
    prefix = next(match[1] for name in weights if (match := _LAYER.fullmatch(name)))
    prefix = prefix[: prefix.rindex("encoder.layer.")] + "encoder.layer."
    for layer, genes in enumerate(layers):
        if block_counts[layer] < genes.stack:
            raise ValueError(
                f"layers[{layer}].stack is {genes.stack}; the supernet has {block_counts[layer]} blocks there"
            )
        inherited |= _gates(weights, base, genes, f"{prefix}{layer}.", layer, seed)
    if base.head_experts > 1 and "classifier.weight" in inherited:
        classifier = inherited.pop("classifier.weight")
        del inherited["classifier.bias"]
        head = initial_head(base.head_experts, classifier, seed)
        inherited |= {f"classifier.{name}": tensor for name, tensor in head.items()}
    if not architecture.has_experts or any(name.endswith(".router.table") for name in weights):
        return inherited
    return routing_tables(architecture, prefix, frequencies, seed) | inherited


def _block_tensor(
    tensor: Tensor, base: Base, genes: Genes, projected: int, module: str, kind: str, name: str
) -> Tensor:
    """The slice of a block's tensor for these genes; the slices of several experts are stacked along a new first
    dimension.

    Args:
        projected: input width of `project`.
        module: "expand", "gate", "project" or "LayerNorm".
        kind: "weight" or "bias".
        name: the tensor's name in the supernet, for error messages.
    """
    count = genes.experts.count
    inner = genes.inner(base)
    dimension = {"expand": 0, "gate": 0, "project": None if kind == "bias" else 1}.get(module)
    if dimension is None:
        return _copies(tensor, count if module == "project" else 1)
    if count == 1:
        return _leading(tensor, dimension, inner if dimension == 0 else projected, name).clone()
    channels_EC = expert_channels(base, genes)
    if dimension == 1:
        # With mismatch "wide", the channels of x beyond the inner width are passed to `project` at their own positions.
        passed_C = torch.arange(inner, max(inner, projected)).expand(count, -1)
        channels_EC = torch.cat((channels_EC, passed_C), dim=1)[:, :projected]
    _leading(tensor, dimension, int(channels_EC.max()) + 1, name)  # raises if the tensor has too few channels
    channels_EC = channels_EC.to(tensor.device)
    return tensor[channels_EC] if dimension == 0 else tensor[:, channels_EC].transpose(0, 1).contiguous()


def _gates(
    weights: Mapping[str, Tensor], base: Base, genes: Genes, prefix: str, layer: int, seed: int
) -> dict[str, Tensor]:
    """The weights (E, width) of a layer's learned routers: those of the FFN's blocks and of the attention."""
    experts = genes.experts
    # For each gate: its number of experts, and its index among the gates of the layer, which selects its random stream.
    gates: dict[str, tuple[int, int]] = {}
    if experts.kind.learned:
        gates = {f"{prefix}ffn.{block}.router.weight": (experts.count, block + 1) for block in range(genes.stack)}
    if base.attention_experts > 1:
        gates[f"{prefix}attention.router.weight"] = (base.attention_experts, 0)
    like = next(tensor for name, tensor in weights.items() if name.startswith(prefix))
    return {
        name: _leading(weights[name], 0, count, name).clone()
        if name in weights
        else initial_gate(count, base.width, 64 * layer + number, like, seed)
        for name, (count, number) in gates.items()
    }


def attention_slice(weights: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The weights of a model with only the first `count` of the experts in every attention. A single expert is a plain
    attention, without a gate. Tensors of other modules are unchanged.

    Args:
        weights: state dict of a model with at least as many experts in every attention.
    """
    result = {}
    for name, tensor in weights.items():
        match = _LAYER.fullmatch(name)
        place = match[3] if match else ""
        if place == "attention.router.weight":
            if count > 1:
                result[name] = tensor[:count]
        elif _ATTENTION.fullmatch(place) and tensor.dim() == (3 if place.endswith("weight") else 2):
            result[name] = tensor[0] if count == 1 else tensor[:count]
        else:
            result[name] = tensor
    return result


def _copies(tensor: Tensor, count: int) -> Tensor:
    """A copy of `tensor`, or `count` copies stacked along a new first dimension if `count` is above 1."""
    return tensor.clone() if count == 1 else tensor.expand(count, *tensor.shape).clone()


def _leading(tensor: Tensor, dimension: int, count: int, name: str) -> Tensor:
    """The first `count` channels of `tensor` along a dimension. Raises ValueError if there are fewer."""
    if tensor.shape[dimension] < count:
        raise ValueError(f"{name} has {tensor.shape[dimension]} channels; the architecture needs {count}")
    return tensor.narrow(dimension, 0, count)
