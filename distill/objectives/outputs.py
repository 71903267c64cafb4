"""What a forward pass hands to an objective, and only what the objective asks for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distill.cpu.attention import SCORED, take_scores
from distill.tasks.types import CLASSIFICATION, logits_and_kind

Batch = dict[str, Tensor]

# What a model takes of a batch; the rest is for the losses.
INPUTS = ("input_ids", "attention_mask", "token_type_ids")

LOGITS = "logits"
HIDDEN_STATES = "hidden_states"
ATTENTION_SCORES = "attention_scores"
RELATIONS = "relations"
ROUTINGS = "routings"


@dataclass(frozen=True)
class Outputs:
    """Outputs of one batch: B sentences of T tokens, L layers, H heads, width D, C classes.

    Attributes:
        logits: in the shape of the task's kind (`distill.tasks.types`), a classification's (B, C).
        kind: of the task.
        hidden_states: L + 1 tensors (B, T, D), the embedding output first; empty when not asked for. Where some layers
            are asked for, the others' tensors have no elements.
        attention_scores: L tensors (B, H, T, T), QK^T / sqrt(head size) before mask and softmax; or as above.
        relations: query, key and value of one layer, each (B, T, D); or empty.
        routings: of every gated router, in the order of their computation, the probabilities (N, E) of its E experts
            for the N tokens or sentences it routes, padding not among them, and their first choices (N,) int64; or
            empty.
    """

    logits: Tensor
    kind: str = CLASSIFICATION
    hidden_states: tuple[Tensor, ...] = ()
    attention_scores: tuple[Tensor, ...] = ()
    relations: tuple[Tensor, ...] = ()
    routings: tuple[tuple[Tensor, Tensor], ...] = ()


def of_layers(name: str, layers: Iterable[int]) -> frozenset[str]:
    """The needs that name these outputs of some layers alone, counted from 1; 0 is the embedding output. Otherwise
    `HIDDEN_STATES` and `ATTENTION_SCORES` are of all, `RELATIONS` of the last one.
    """
    return frozenset(f"{name}.{layer}" for layer in layers)


def layers_of(needs: Iterable[str], name: str, whole: Sequence[int]) -> list[int]:
    """The layers of which these outputs are needed; `whole` where `name` itself is."""
    parts = [need.partition(".") for need in needs]
    found = {int(layer) for own, _, layer in parts if own == name and layer}
    return sorted(found.union(whole if name in needs else ()))


def run(model: nn.Module, batch: Batch, needs: frozenset[str]) -> Outputs:
    """Run a BERT-shaped model and collect `needs`, any of the constants of this module, or `of_layers` some layers.

    The model is free to use a fused attention, also where its scores are needed. A router is any submodule whose name
    ends in `router`; it returns an object with `probabilities` (N, E), None where the choice needs none, and `experts`
    (N, k), the best first.

    Raises:
        ValueError: relations of more than one layer are needed.
    """
    unwrapped: Any = getattr(model, "module", model)
    attentions = [layer.attention.self for layer in unwrapped.base_model.encoder.layer]
    depth = len(attentions)
    states = layers_of(needs, HIDDEN_STATES, range(depth + 1))
    scored = layers_of(needs, ATTENTION_SCORES, range(1, depth + 1))
    related = layers_of(needs, RELATIONS, [depth])
    if len(related) > 1:
        raise ValueError(f"the relations of one layer can be had at a time, not of {' and '.join(map(str, related))}")
    inputs = {name: batch[name] for name in INPUTS if name in batch}
    hooks: list[Any] = []

    def kept(modules: list[nn.Module]) -> list[Any]:
        """What these modules will return, in the order in which they run."""
        outputs: list[Any] = []
        hooks.extend(m.register_forward_hook(lambda _m, _i, output: outputs.append(output)) for m in modules)
        return outputs

    # An attention of this kind keeps them; of another, they are computed anew from what its maps return.
    own = unwrapped.config._attn_implementation == SCORED
    asked = [] if own else [attentions[layer - 1] for layer in scored]
    products = kept([m for attention in asked for m in (attention.query, attention.key)])
    relations = kept([m for a in (attentions[layer - 1] for layer in related) for m in (a.query, a.key, a.value)])
    routed = kept([module for _, module in routers(unwrapped)] if ROUTINGS in needs else [])
    try:
        outputs = model(**inputs, output_hidden_states=bool(states))
    finally:
        for hook in hooks:
            hook.remove()
    heads = unwrapped.config.num_attention_heads
    logits, kind = logits_and_kind(outputs, unwrapped.config)
    if own:
        found = [take_scores(attention) for attention in attentions]
        scores = {layer - 1: value for layer in scored if (value := found[layer - 1]) is not None}
    else:
        pairs = zip(products[::2], products[1::2], strict=True)
        scores = {layer - 1: dot_products(q, k, heads) for layer, (q, k) in zip(scored, pairs, strict=True)}
    return Outputs(
        logits=logits,
        kind=kind,
        hidden_states=spread({layer: outputs.hidden_states[layer] for layer in states}, depth + 1),
        attention_scores=spread(scores, depth),
        relations=tuple(relations),
        routings=tuple((r.probabilities, r.experts[:, 0]) for r in routed if r.probabilities is not None),
    )


def spread(found: Mapping[int, Tensor], length: int) -> tuple[Tensor, ...]:
    """A tuple with these tensors in their places and ones without elements in the others; empty if there are none."""
    filler = torch.empty(0)
    return tuple(found.get(place, filler) for place in range(length)) if found else ()


def routers(model: Any) -> list[tuple[str, Any]]:
    """The routers of the encoder that computes, and of the head, with their names."""
    head = getattr(model, "classifier", None)
    named = [*model.base_model.named_modules(), *(head.named_modules(prefix="classifier") if head is not None else ())]
    return [(name, module) for name, module in named if name.rpartition(".")[2] == "router"]


def dot_products(query_BTD: Tensor, key_BTD: Tensor, heads: int) -> Tensor:
    """(B, heads, T, T): QK^T / sqrt(D / heads), the channels split into heads."""
    batch, tokens, width = query_BTD.shape
    size = width // heads
    query_BHTS = query_BTD.view(batch, tokens, heads, size).transpose(1, 2)
    key_BHTS = key_BTD.view(batch, tokens, heads, size).transpose(1, 2)
    return query_BHTS @ key_BHTS.transpose(-1, -2) * size**-0.5
