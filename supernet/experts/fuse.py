"""Pruning of experts after training: rarely used experts are dropped, or fused with the most similar one.

These are the compression and the fusion of MicroBERT, section 3.4, which gives no rules for them. The only experts of
that paper are prediction layers (equations 4 and 5); here the experts of FFNs can be removed as well. Attention experts
cannot. Two prediction layers must remain: a head with a single one is a linear classifier, which computes another
function.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.encoders.family import EXPERT_HEAD, TABLE, family_of_weights, in_block
from distill.training.evaluation import Load
from search_spaces.architecture import Architecture
from search_spaces.layer import DENSE, FFN, PredictionHead
from supernet.experts import ExpertsError

# In place of a layer's number, as in `Load.layer`.
HEAD = -1
LEAST_OF_HEAD = 2

# The linear maps of experts in FFNs and in a head, and those among them whose results are the experts' outputs.
_MAPS, _OUTPUTS = ("expand", "gate", "project", "inner", "outer"), ("project", "outer")


def loads_of(loads: Sequence[Load], place: int) -> list[Load]:
    """The loads of the routers of a layer's FFN: a single one for a table, or one per block for gates. For `HEAD`, the
    load of the head's gate.
    """
    return [load for load in loads if load.layer == place and load.part.startswith("head" if place == HEAD else "ffn")]


def untouched_experts(architecture: Architecture, part: str = "ffn") -> str:
    """A description of the experts outside this part, "ffn" or "head"; empty if the model has none."""
    in_ffns = any(ffn.experts.count > 1 for ffn in architecture.ffns)
    counts = {layer.attention.experts for layer in architecture.layers} - {1}
    parts = [f"{' or '.join(map(str, sorted(counts)))} of every attention"] * bool(counts)
    head = architecture.head.experts
    parts += [f"{head} of the head"] * (head > 1 and part != "head")
    return " and ".join(parts + ["those of the feed-forward networks"] * (in_ffns and part != "ffn"))


def unused_experts(
    architecture: Architecture, loads: Sequence[Load], fraction: Fraction, part: str = "ffn"
) -> dict[int, list[int]]:
    """The experts whose load is below this fraction of an equal load, in all blocks of their layer. At least one expert
    of a layer is kept, and two of the head.

    Args:
        part: "ffn" for the experts of all FFNs, "head" for the prediction layers of the head.

    Returns:
        The numbers of the unused experts by layer, or by `HEAD`, without those that have none.

    Raises:
        ExpertsError: this part has no experts that could be removed.
    """
    if part == "head":
        counts, least = {HEAD: architecture.head.experts}, LEAST_OF_HEAD
        reason = (
            f"the head needs at least {least + 1} prediction layers, since {least} must remain; it has {counts[HEAD]}"
        )
    else:
        counts, least = {layer: ffn.experts.count for layer, ffn in enumerate(architecture.ffns)}, 1
        reason = "no feed-forward network of the model has experts"
    if all(count <= least for count in counts.values()):
        others = untouched_experts(architecture, part)
        raise ExpertsError(reason + (f"; those that it has, {others}, are not removed" if others else ""))
    unused: dict[int, list[int]] = {}
    for place, count in counts.items():
        shares = [load.shares for load in loads_of(loads, place)]
        if count == 1 or not shares:
            continue
        highest = [max(of_expert) for of_expert in zip(*shares, strict=True)]
        experts = [expert for expert, load in enumerate(highest) if load < fraction / count]
        lowest_first = sorted(experts, key=lambda expert: (highest[expert], -expert))
        if removed := sorted(lowest_first[: count - least]):
            unused[place] = removed
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
        unused: the numbers of the experts to remove, by layer, or by `HEAD` for prediction layers.
        fuse: replace the most similar remaining expert by the mean of itself and the removed ones, weighted by load.

    Raises:
        ExpertsError: there is no such expert, or too few would remain; or experts behind a gate of relative scale have
            a graph that does not end in `project`, whose output has to be scaled.
    """
    result = dict(weights)
    head, layers = architecture.head, list(architecture.ffns)
    relative = architecture.base.gate_scale == "relative"
    for place, removed in unused.items():
        if place == HEAD:
            prefix = EXPERT_HEAD
            remaining = _remaining("the head", head.experts, LEAST_OF_HEAD, removed)
            scale = Fraction(head.experts, len(remaining)) if relative else Fraction(1)
            head = PredictionHead(len(remaining))
        else:
            prefix = f"{family_of_weights(weights).prefix(weights)}{place}."
            ffn = layers[place]
            remaining = _remaining(f"layers[{place}]", ffn.experts.count, 1, removed)
            experts = DENSE
            if len(remaining) > 1:
                experts = replace(ffn.experts, count=len(remaining), top_k=min(ffn.experts.top_k, len(remaining)))
            layers[place] = replace(ffn, experts=experts)
            scale = _output_scale(ffn, layers[place], place) if relative else Fraction(1)
        tensors = {name: tensor for name, tensor in weights.items() if name.startswith(prefix)}
        for name in tensors:
            del result[name]
        load_E = torch.tensor([load.shares for load in loads_of(loads, place)]).mean(dim=0).double()
        result |= _without(tensors, prefix, remaining, removed, load_E if fuse else None, scale)
    return result, replace(architecture.with_ffns(layers), head=head)


def _remaining(name: str, count: int, least: int, removed: Sequence[int]) -> list[int]:
    """The numbers of the remaining experts."""
    remaining = [expert for expert in range(count) if expert not in removed]
    if len(remaining) != count - len(set(removed)) or len(remaining) < least:
        numbers = ", ".join(map(str, removed))
        must = {1: "one", LEAST_OF_HEAD: "two"}[least]
        raise ExpertsError(
            f"{name} has experts 0 to {count - 1}, of which at least {must} must remain; cannot remove {numbers}"
        )
    return remaining


def _output_scale(before: FFN, after: FFN, layer: int) -> Fraction:
    """The factor by which the experts' outputs must be multiplied.

    A gate whose scale is "relative" multiplies outputs by E / K, which becomes smaller while its probabilities hardly
    increase.
    """
    if not before.experts.gated:
        return Fraction(1)
    if before.graph.nodes[-1].op != "project":
        raise ExpertsError(
            f"layers[{layer}]: with fewer experts behind a gate the output of `project` has to be scaled, and it is "
            f"not the last operation of {before.graph}"
        )
    return Fraction(before.experts.count, before.experts.top_k) / Fraction(after.experts.count, after.experts.top_k)


def _without(
    tensors: Mapping[str, Tensor],
    prefix: str,
    remaining: Sequence[int],
    removed: Sequence[int],
    load_E: Tensor | None,
    scale: Fraction,
) -> dict[str, Tensor]:
    """The tensors of a layer or of the head without some experts.

    Args:
        load_E: the experts' loads, if removed experts are fused with remaining ones.
        scale: the factor for the outputs of the experts.
    """
    modules = {name: _module(name.removeprefix(prefix)) for name in tensors}
    maps = {name: tensor for name, tensor in tensors.items() if modules[name] in _MAPS}
    heirs = _heirs(maps.values(), remaining, removed)
    result = {}
    for name, tensor in tensors.items():
        if name in maps:
            kept = tensor[list(remaining)].clone() if load_E is None else _fused(tensor, remaining, heirs, load_E)
            kept = kept if len(remaining) > 1 else kept[0]
            result[name] = kept * float(scale) if modules[name] in _OUTPUTS else kept
        elif modules[name] != "router":
            result[name] = tensor
        elif len(remaining) == 1:
            continue
        elif name.endswith(TABLE):
            count = len(remaining) + len(set(removed))
            new_numbers = [remaining.index(heirs.get(expert, expert)) for expert in range(count)]
            result[name] = torch.tensor(new_numbers, dtype=tensor.dtype)[tensor.long()]
        else:
            result[name] = tensor[list(remaining)].clone()
    return result


def _module(inside: str) -> str:
    """The module of a tensor of a layer or of the head; of a block's, without the block's number."""
    of_block = in_block(inside)
    return of_block[1] if of_block else inside.rpartition(".")[0]


def _heirs(maps: Iterable[Tensor], remaining: Sequence[int], removed: Sequence[int]) -> dict[int, int]:
    """For each removed expert the most similar remaining one."""
    weights_EX = torch.cat([tensor.flatten(1).double() for tensor in maps], dim=1)
    heirs = {}
    for expert in removed:
        similarity = F.cosine_similarity(weights_EX[list(remaining)], weights_EX[expert][None])
        heirs[expert] = remaining[int(similarity.argmax())]
    return heirs


def _fused(tensor: Tensor, remaining: Sequence[int], heirs: Mapping[int, int], load_E: Tensor) -> Tensor:
    """The remaining experts' part of a stacked tensor (E, ...), each expert averaged with those fused into it."""
    kept = tensor[list(remaining)].clone()
    for number, expert in enumerate(remaining):
        group = [expert, *(removed for removed, heir in heirs.items() if heir == expert)]
        total = load_E[group].sum()
        if len(group) > 1 and total:
            mean = torch.einsum("e,e...->...", load_E[group] / total, tensor[group].double())
            kept[number] = mean.to(tensor.dtype)
    return kept
