"""Pruning of experts after training: rarely used experts are dropped, or fused with the most similar one.

These are the compression and the fusion of MicroBERT, section 3.4, which gives no rules for them. Only experts of FFNs
are removed: an architecture must have the same number of attention experts in all layers, and a head with one
prediction layer computes another function.
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
    """The loads of the routers of a layer's FFN: a single one for a table, or one per block for gates."""
    return [load for load in loads if load.layer == layer and load.part.startswith("ffn")]


def untouched_experts(base: Base) -> str:
    """A description of the experts that are never removed; empty if the model has none."""
    attention, head = base.attention_experts, base.head_experts
    parts = [f"{attention} of every attention"] * (attention > 1) + [f"{head} of the head"] * (head > 1)
    return " and ".join(parts)


def unused_experts(architecture: Architecture, loads: Sequence[Load], share: Fraction) -> dict[int, list[int]]:
    """The experts whose load is below `share` of an equal load in all blocks of their layer; at least one expert of a
    layer is kept.

    Returns:
        The numbers of the unused experts by layer, without layers that have none.

    Raises:
        ExpertsError: no layer has experts in its FFN.
    """
    if all(genes.experts.count == 1 for genes in architecture.layers):
        others = untouched_experts(architecture.base)
        suffix = f"; those that it has, {others}, cannot be removed" if others else ""
        raise ExpertsError(f"no feed-forward network of the model has experts{suffix}")
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
    """Remove experts from a mixture; returns the new weights and architecture.

    With a routing table, the tokens of a removed expert go to the remaining expert that is most similar to it (cosine
    similarity of all weights); with a gate, to the one with the next highest probability. A layer with one remaining
    expert becomes dense.

    Args:
        weights: state dict of a mixture.
        loads: the loads of all its routers.
        unused: the numbers of the experts to remove, by layer.
        fuse: replace the most similar remaining expert by the mean of itself and the removed ones, weighted by load.

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
        new_tensors, layers[layer] = _layer_without(tensors, prefix, layers[layer], layer, loads, removed, fuse)
        for name in tensors:
            del result[name]
        result |= new_tensors
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
    # The router multiplies outputs by E / K, which becomes smaller while the gate's probabilities hardly increase.
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
    """For each removed expert the most similar remaining one."""
    weights_EX = torch.cat([tensor.flatten(1).double() for tensor in maps], dim=1)
    heirs = {}
    for expert in removed:
        similarity = F.cosine_similarity(weights_EX[list(remaining)], weights_EX[expert][None])
        heirs[expert] = remaining[int(similarity.argmax())]
    return heirs


def _fused(tensor: Tensor, remaining: Sequence[int], heirs: Mapping[int, int], share_E: Tensor) -> Tensor:
    """The remaining experts' part of a stacked tensor (E, ...), each expert averaged with those fused into it."""
    kept = tensor[list(remaining)].clone()
    for number, expert in enumerate(remaining):
        group = [expert, *(removed for removed, heir in heirs.items() if heir == expert)]
        total = share_E[group].sum()
        if len(group) > 1 and total:
            mean = torch.einsum("e,e...->...", share_E[group] / total, tensor[group].double())
            kept[number] = mean.to(tensor.dtype)
    return kept


def _with_count(genes: Genes, count: int) -> Genes:
    """The genes with this number of experts."""
    if count == 1:
        return replace(genes, experts=DENSE)
    return replace(genes, experts=replace(genes.experts, count=count, top_k=min(genes.experts.top_k, count)))
