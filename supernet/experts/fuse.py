"""Fewer experts after training: those that hardly any token goes to are dropped, or fused with the most similar one.

These are the fusion and the compression of MicroBERT, section 3.4, which gives no rule for them. Only the experts of
FFNs are removed: an architecture has the same number of attention experts in all layers, and a head of one prediction
layer is another function.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.training.evaluation import Load
from search_spaces.architecture import DENSE, Architecture, Base, Genes
from supernet.experts import ExpertsError

_MAPS = re.compile(r"ffn\.\d+\.(?:expand|gate|project)\.(?:weight|bias)")
_GATE = re.compile(r"ffn\.\d+\.router\.weight")


def ffn_loads(loads: Sequence[Load], layer: int) -> list[Load]:
    """The loads of the routers of a layer's FFN: one of a table, or one for each block with a gate."""
    return [load for load in loads if load.layer == layer and load.part.startswith("ffn")]


def untouched_experts(base: Base) -> str:
    """The experts of a model that are never removed, in words; empty if it has none."""
    attention, head = base.attention_experts, base.head_experts
    parts = [f"{attention} of every attention"] * (attention > 1) + [f"{head} of the head"] * (head > 1)
    return " and ".join(parts)


def unused_experts(architecture: Architecture, loads: Sequence[Load], share: Fraction) -> dict[int, list[int]]:
    """The experts of every FFN whose load is below `share` of an equal one in all blocks; never all of a layer.

    Returns:
        The numbers of the experts by layer, without the layers that use all of theirs.

    Raises:
        ExpertsError: no layer has experts in its FFN.
    """
    if all(genes.experts.count == 1 for genes in architecture.layers):
        others = untouched_experts(architecture.base)
        rest = f"; those that it has, {others}, cannot be removed" if others else ""
        raise ExpertsError(f"no feed-forward network of the model has experts{rest}")
    unused: dict[int, list[int]] = {}
    for layer, genes in enumerate(architecture.layers):
        shares = [load.shares for load in ffn_loads(loads, layer)]
        if genes.experts.count == 1 or not shares:
            continue
        highest = [max(of_expert) for of_expert in zip(*shares, strict=True)]
        experts = [expert for expert, load in enumerate(highest) if load < share / genes.experts.count]
        if len(experts) == genes.experts.count:
            experts.remove(highest.index(max(highest)))
        if experts:
            unused[layer] = experts
    return unused


def remove_experts(
    weights: Mapping[str, Tensor],
    architecture: Architecture,
    loads: Sequence[Load],
    unused: Mapping[int, Sequence[int]],
    fuse: bool,
) -> tuple[dict[str, Tensor], Architecture]:
    """Weights and architecture without some experts.

    A table sends the tokens of a removed expert to the one that remains and is most similar to it (cosine of all
    weights); a gate, to the next in probability. A layer with one remaining expert becomes dense.

    Args:
        weights: state dict of a mixture.
        loads: of all its routers.
        unused: the numbers of the experts to remove, by layer.
        fuse: replace the most similar expert by the mean of it and those removed, weighted by their loads.

    Raises:
        ExpertsError: a layer has no such expert, or would keep none; or experts behind a gate have a graph that does
            not end in `project`, whose output has to be scaled.
    """
    result = dict(weights)
    layers = list(architecture.layers)
    for layer, removed in unused.items():
        name = next(name for name in weights if f"encoder.layer.{layer}.ffn." in name)
        prefix = name[: name.index("ffn.")]
        tensors = {name: tensor for name, tensor in weights.items() if name.startswith(prefix)}
        smaller, layers[layer] = _layer_without(tensors, prefix, layers[layer], layer, loads, removed, fuse)
        for name in tensors:
            del result[name]
        result |= smaller
    return result, Architecture(architecture.base, tuple(layers))


def _layer_without(
    tensors: Mapping[str, Tensor],
    prefix: str,
    genes: Genes,
    layer: int,
    loads: Sequence[Load],
    removed: Sequence[int],
    fuse: bool,
) -> tuple[dict[str, Tensor], Genes]:
    """The tensors and genes of a layer without some experts."""
    count = genes.experts.count
    remaining = [expert for expert in range(count) if expert not in removed]
    if len(remaining) != count - len(set(removed)) or not remaining:
        numbers = ", ".join(map(str, removed))
        raise ExpertsError(
            f"layers[{layer}] has experts 0 to {count - 1}, of which at least one must remain; cannot remove {numbers}"
        )
    learned = genes.experts.kind.learned
    if learned and genes.graph.nodes[-1].op != "project":
        raise ExpertsError(
            f"layers[{layer}]: with fewer experts behind a gate the output of `project` has to be scaled, and it is "
            f"not the last operation of {genes.graph}"
        )
    smaller = _with_count(genes, len(remaining))
    maps = {name: tensor for name, tensor in tensors.items() if _MAPS.fullmatch(name.removeprefix(prefix))}
    heirs = _heirs(maps.values(), remaining, removed)
    share_E = torch.tensor([load.shares for load in ffn_loads(loads, layer)]).mean(dim=0).double()
    # The router multiplies by E / K, which becomes less, while the gate's probabilities become hardly more.
    scale = Fraction(count, genes.experts.top_k) / Fraction(smaller.experts.count, smaller.experts.top_k)
    result = {}
    for name, tensor in tensors.items():
        if name in maps:
            kept = _fused(tensor, remaining, heirs, share_E) if fuse else tensor[remaining].clone()
            kept = kept if len(remaining) > 1 else kept[0]
            result[name] = kept * float(scale) if learned and ".project." in name else kept
        elif _GATE.fullmatch(name.removeprefix(prefix)):
            if len(remaining) > 1:
                result[name] = tensor[remaining].clone()
        elif name == f"{prefix}router.table":
            if len(remaining) > 1:
                new_numbers = [remaining.index(heirs.get(expert, expert)) for expert in range(count)]
                result[name] = torch.tensor(new_numbers, dtype=tensor.dtype)[tensor.long()]
        else:
            result[name] = tensor
    return result, smaller


def _heirs(maps: Iterable[Tensor], remaining: Sequence[int], removed: Sequence[int]) -> dict[int, int]:
    """For each removed expert the most similar one of those that remain."""
    weights_EX = torch.cat([tensor.flatten(1).double() for tensor in maps], dim=1)
    heirs = {}
    for expert in removed:
        similarity = F.cosine_similarity(weights_EX[list(remaining)], weights_EX[expert][None])
        heirs[expert] = remaining[int(similarity.argmax())]
    return heirs


def _fused(tensor: Tensor, remaining: Sequence[int], heirs: Mapping[int, int], share_E: Tensor) -> Tensor:
    """The remaining experts' part of a stacked tensor (E, ...), each the mean of it and its removed experts."""
    kept = tensor[list(remaining)].clone()
    for number, expert in enumerate(remaining):
        group = [expert, *(removed for removed, heir in heirs.items() if heir == expert)]
        total = share_E[group].sum()
        if len(group) > 1 and total:
            mean = torch.einsum("e,e...->...", share_E[group] / total, tensor[group].double())
            kept[number] = mean.to(tensor.dtype)
    return kept


def _with_count(genes: Genes, count: int) -> Genes:
    """The genes with so many experts."""
    if count == 1:
        return replace(genes, experts=DENSE)
    return replace(genes, experts=replace(genes.experts, count=count, top_k=min(genes.experts.top_k, count)))
