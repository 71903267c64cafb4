"""What a candidate takes over from the supernet: a pure function from weights to weights."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.cost import project_width

_BLOCK = re.compile(r"(?:.*\.)?encoder\.layer\.(\d+)\.ffn\.(\d+)\.(\w+)\.(weight|bias)")


def inherit(weights: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """The weights with which a candidate starts.

    Lowest blocks first, leading inner channels; attention, norms, embeddings and heads whole (EfficientBERT,
    section 3.2: stacked FFNs are sliced from bottom to top, linear operations from left to right). A gate that
    the supernet does not have starts as the constant one (weight 0, bias 1), with which `mul(f,gate(x))` is f.

    Args:
        weights: state dict of a supernet of the same base, with at least as many blocks in every layer.
        architecture: of the candidate.

    Returns:
        Independent copies, complete for a model built from `architecture` with the supernet's head.

    Raises:
        ValueError: the supernet has too few blocks or channels for a layer.
    """
    base = architecture.base
    sizes = [
        (genes.stack, genes.inner(base), project_width(base, genes), genes.graph.gated)
        for genes in architecture.layers
    ]
    inherited = {}
    blocks = [0] * len(sizes)
    for name, tensor in weights.items():
        match = _BLOCK.fullmatch(name)
        if match:
            layer, block = int(match[1]), int(match[2])
            if layer >= len(sizes):
                raise ValueError(
                    f"the supernet has a layer {layer}; the architecture has {len(sizes)} layers"
                )
            stack, inner, projected, gated = sizes[layer]
            if block >= stack or (match[3] == "gate" and not gated):
                continue
            blocks[layer] = max(blocks[layer], block + 1)
            if match[3] in ("expand", "gate"):
                tensor = _leading(tensor, 0, inner, name)
                gate = name.replace(".expand.", ".gate.")
                if gated and gate not in weights:
                    inherited[gate] = torch.full_like(tensor, float(match[4] == "bias"))
            elif (match[3], match[4]) == ("project", "weight"):
                tensor = _leading(tensor, 1, projected, name)
        inherited[name] = tensor.clone()
    for layer, (stack, *_) in enumerate(sizes):
        if blocks[layer] < stack:
            raise ValueError(
                f"layers[{layer}].stack is {stack}; the supernet has {blocks[layer]} blocks there"
            )
    return inherited


def _leading(tensor: Tensor, dimension: int, count: int, name: str) -> Tensor:
    if tensor.shape[dimension] < count:
        raise ValueError(f"{name} has {tensor.shape[dimension]} channels; the architecture needs {count}")
    return tensor.narrow(dimension, 0, count)
