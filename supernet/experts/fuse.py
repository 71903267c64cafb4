"""Fewer experts after training: those that hardly any token goes to are dropped, or fused with the one most like them
(the fusion and compression of MicroBERT, section 3.4, which gives no rule for it).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.training.evaluation import Load
from search_spaces.architecture import DENSE, Architecture, Genes

_MAPS = re.compile(r"ffn\.\d+\.(?:expand|gate|project)\.(?:weight|bias)")
_GATE = re.compile(r"ffn\.\d+\.router\.weight")


def unused(architecture: Architecture, loads: Sequence[Load], least: Fraction) -> dict[int, list[int]]:
    """The experts of every layer whose load is below `least` of an equal share, in all of its blocks; never all."""
    result: dict[int, list[int]] = {}
    for layer, genes in enumerate(architecture.layers):
        rows = [load.shares for load in loads if load.layer == layer and load.part != "attention"]
        if genes.experts.count == 1 or not rows:
            continue
        highest = [max(shares) for shares in zip(*rows, strict=True)]
        few = [expert for expert, share in enumerate(highest) if share < least / genes.experts.count]
        if len(few) == genes.experts.count:
            few.remove(highest.index(max(highest)))
        if few:
            result[layer] = few
    return result


def without(
    weights: Mapping[str, Tensor],
    architecture: Architecture,
    loads: Sequence[Load],
    experts: Mapping[int, Sequence[int]],
    fuse: bool,
) -> tuple[dict[str, Tensor], Architecture]:
    """Weights and architecture without these experts (layer -> numbers).

    Where routing is by hash, the tokens of an expert that goes are sent to the one that is most like it (cosine of all
    its weights); with a gate, to the next in probability. With `fuse` the one most like it becomes the mean of both,
    weighted by their loads. A layer that keeps one expert is dense.

    Raises:
        ValueError: a layer has no such expert, or would keep none; or experts behind a gate have a graph that does not
            end in `project`.
    """
    result = dict(weights)
    layers = list(architecture.layers)
    for layer, going in experts.items():
        genes = layers[layer]
        place = next(name for name in weights if f"encoder.layer.{layer}.ffn." in name)
        prefix = place[: place.index("ffn.")]
        own = {name: tensor for name, tensor in weights.items() if name.startswith(prefix)}
        count = genes.experts.count
        if genes.experts.gated and genes.graph.nodes[-1].op != "project":
            raise ValueError(f"layers[{layer}]: `project` is not the last operation of {genes.graph}")
        staying = [expert for expert in range(count) if expert not in going]
        if len(staying) != count - len(set(going)) or not staying:
            named = ", ".join(map(str, going))
            raise ValueError(f"layers[{layer}] has experts 0 to {count - 1}, of which one stays; {named} cannot go")
        maps = {name: tensor for name, tensor in own.items() if _MAPS.fullmatch(name.removeprefix(prefix))}
        heir = _heirs(maps.values(), staying, going)
        shares = torch.tensor([load.shares for load in loads if load.layer == layer and load.part != "attention"])
        share_E = shares.mean(dim=0).double()
        for name, tensor in maps.items():
            kept = tensor[staying].clone()
            if fuse:
                for number, expert in enumerate(staying):
                    group = [expert, *(lost for lost in going if heir[lost] == expert)]
                    weight = share_E[group] / share_E[group].sum() if share_E[group].sum() else None
                    if len(group) > 1 and weight is not None:
                        mean = torch.einsum("e,e...->...", weight, tensor[group].double())
                        kept[number] = mean.to(tensor.dtype)
            result[name] = kept if len(staying) > 1 else kept[0]
        numbers = [staying.index(heir.get(expert, expert)) for expert in range(count)]
        for name, tensor in own.items():
            if _GATE.fullmatch(name.removeprefix(prefix)):
                result[name] = tensor[staying].clone()
            elif name == f"{prefix}router.table":
                result[name] = torch.tensor(numbers, dtype=tensor.dtype)[tensor.long()]
            else:
                continue
            if len(staying) == 1:
                del result[name]
        layers[layer] = smaller = _fewer(genes, len(staying))
        if genes.experts.gated:
            # A router multiplies by E / K, which becomes less; probabilities become hardly more.
            lost = Fraction(count, genes.experts.top_k) / Fraction(smaller.experts.count, smaller.experts.top_k)
            for name in maps:
                if ".project." in name:
                    result[name] = result[name] * float(lost)
    return result, Architecture(architecture.base, tuple(layers))


def _heirs(maps: Iterable[Tensor], staying: Sequence[int], going: Sequence[int]) -> dict[int, int]:
    """Which of the experts that stay is most like each that goes."""
    flat_EX = torch.cat([tensor.flatten(1).double() for tensor in maps], dim=1)
    heirs = {}
    for expert in going:
        alike = F.cosine_similarity(flat_EX[list(staying)], flat_EX[expert][None])
        heirs[expert] = staying[int(alike.argmax())]
    return heirs


def _fewer(genes: Genes, count: int) -> Genes:
    if count == 1:
        return replace(genes, experts=DENSE)
    return replace(genes, experts=replace(genes.experts, count=count, top_k=min(genes.experts.top_k, count)))
