"""Collection of the outputs of a forward pass that an objective needs; others are not computed or stored."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distill.cpu.attention import SCORED, take_scores
from distill.encoders.family import family_of
from distill.encoders.heads import Heads, heads_of
from distill.encoders.parts import attends, fused_path, model_inputs, part
from distill.tasks.types import CLASSIFICATION, task_type_of

Batch = dict[str, Tensor]

LOGITS = "logits"
HIDDEN_STATES = "hidden_states"
ATTENTION_SCORES = "attention_scores"
RELATIONS = "relations"
ROUTINGS = "routings"


@dataclass(frozen=True)
class Outputs:
    """Outputs of one batch: B sentences of T tokens, L layers, H heads, width D, C classes.

    A layer of a student may have fewer heads, or none.

    Attributes:
        logits: in the shape for the task's type (`distill.tasks.types`), such as (B, C) for a classification.
        task_type: the name of the task's type.
        hidden_states: L + 1 tensors (B, T, D), the embedding output first; empty if not needed. If only some layers
            are needed, the tensors of the others have no elements.
        attention_scores: L tensors (B, H, T, T), QK^T / sqrt(head size) before mask and softmax, of queries and keys
            after their rotation, if there is one, without terms that relative positions add; empty if not needed, or
            without elements as above, and where a layer has no heads.
        relations: query, key and value of one layer, each (B, T, D), or as wide as all heads that the layer has; empty
            if not needed, or if it has no heads.
        routings: for every gated router, in order of computation, the probabilities (N, E) of its E experts for the N
            routed tokens or sentences, without padding, and the most probable expert of each, (N,) int64; empty if not
            needed.
        heads: for each layer which of the teacher's heads its own are (`distill.encoders.heads`); empty if every layer
            has all of them in their order.
    """

    logits: Tensor
    task_type: str = CLASSIFICATION
    hidden_states: tuple[Tensor, ...] = ()
    attention_scores: tuple[Tensor, ...] = ()
    relations: tuple[Tensor, ...] = ()
    routings: tuple[tuple[Tensor, Tensor], ...] = ()
    heads: tuple[Heads, ...] = ()


def of_layers(name: str, layers: Iterable[int]) -> frozenset[str]:
    """The names that request an output of these layers only, counted from 1; layer 0 is the embedding output.

    The plain names `HIDDEN_STATES` and `ATTENTION_SCORES` request all layers, `RELATIONS` the last one.
    """
    return frozenset(f"{name}.{layer}" for layer in layers)


def layers_of(needs: Iterable[str], name: str, whole: Sequence[int]) -> list[int]:
    """The layers for which `needs` requests the output `name`; the plain name requests the layers `whole`."""
    parts = [need.partition(".") for need in needs]
    layers = {int(layer) for output, _, layer in parts if output == name and layer}
    return sorted(layers.union(whole if name in needs else ()))


def run(model: nn.Module, batch: Batch, needs: frozenset[str]) -> Outputs:
    """Run a model and collect the outputs that `needs` names: constants of this module, or names from
    `of_layers`.

    The model may use a fused attention even if attention scores are needed. A router is any submodule named `router`;
    it returns an object with `probabilities` (N, E), or None for a router without a gate, and `experts` (N, k), the
    most probable first.

    A model with heads for several tasks says by its attribute `task_type` which one it predicts.

    Raises:
        ValueError: relations of more than one layer are needed.
    """
    unwrapped: Any = getattr(model, "module", model)
    family = family_of(unwrapped.config)
    layers = list(unwrapped.base_model.get_submodule(family.layers))
    depth = len(layers)
    states = layers_of(needs, HIDDEN_STATES, range(depth + 1))
    attending = {number for number, layer in enumerate(layers, start=1) if attends(layer, family)}
    scored = [layer for layer in layers_of(needs, ATTENTION_SCORES, range(1, depth + 1)) if layer in attending]
    related = layers_of(needs, RELATIONS, [depth])
    if len(related) > 1:
        raise ValueError(
            f"only one layer's relations can be collected, not those of layers {' and '.join(map(str, related))}"
        )
    hooks: list[Any] = []

    def collected(modules: Iterable[nn.Module]) -> dict[nn.Module, Any]:
        """A dictionary to which forward hooks add the first outputs of these modules, in the order in which they run.
        DeBERTa's linear maps also process its relative positions, after the tokens.
        """
        outputs: dict[nn.Module, Any] = {}

        def keep(module: nn.Module, _: object, output: Any) -> None:
            outputs.setdefault(module, output)

        hooks.extend(module.register_forward_hook(keep) for module in modules)
        return outputs

    def maps(numbers: list[int], *paths: str) -> Iterable[nn.Module]:
        return [part(layers[number - 1], path) for number in numbers for path in paths]

    # The SCORED attention keeps its scores. With any other, they are recomputed from queries and keys; where these are
    # rotated afterwards, this pass runs with SCORED.
    attention = unwrapped.config._attn_implementation
    keeps_scores = attention == SCORED or bool(scored and family.rotary)
    products = collected(maps([] if keeps_scores else scored, family.query, family.key))
    related = [layer for layer in related if layer in attending]
    paths = dict.fromkeys(fused_path(family, path) for path in (family.query, family.key, family.value))
    relations = collected(maps(related, *paths))
    routings = collected([module for _, module in routers(unwrapped)] if ROUTINGS in needs else [])
    try:
        if keeps_scores and attention != SCORED:
            unwrapped.set_attn_implementation(SCORED)
        outputs = model(**model_inputs(unwrapped.config, batch), output_hidden_states=bool(states))
    finally:
        for hook in hooks:
            hook.remove()
        if keeps_scores and attention != SCORED:
            unwrapped.set_attn_implementation(attention)
    # Of the base model, since the slices of a one-shot supernet have fewer heads than itself.
    heads = heads_of(unwrapped.base_model.config)
    task_type = getattr(unwrapped, "task_type", None) or task_type_of(unwrapped)
    assert task_type is not None
    if keeps_scores:
        kept_scores = {number: take_scores(part(layers[number - 1], family.self_attention)) for number in attending}
        scores = {layer - 1: value for layer in scored if (value := kept_scores[layer]) is not None}
    else:
        queries_and_keys = list(products.values())
        pairs = zip(queries_and_keys[::2], queries_and_keys[1::2], strict=True)
        scores = {n - 1: dot_products(q, k, len(heads[n - 1])) for n, (q, k) in zip(scored, pairs, strict=True)}
    return Outputs(
        logits=task_type.logits(outputs, batch, unwrapped.config),
        task_type=task_type.name,
        hidden_states=spread({layer: outputs.hidden_states[layer] for layer in states}, depth + 1),
        attention_scores=spread(scores, depth),
        relations=tuple(part for output in relations.values() for part in output.chunk(3 // len(paths), dim=-1)),
        routings=tuple((r.probabilities, r.experts[:, 0]) for r in routings.values() if r.probabilities is not None),
        heads=heads,
    )


def spread(tensors: Mapping[int, Tensor], length: int) -> tuple[Tensor, ...]:
    """A tuple with these tensors at their indices and empty tensors elsewhere; an empty tuple without tensors."""
    filler = torch.empty(0)
    return tuple(tensors.get(index, filler) for index in range(length)) if tensors else ()


def routers(model: Any) -> list[tuple[str, Any]]:
    """The routers of the encoder and of the head, with their names."""
    head = getattr(model, "classifier", None)
    named = [*model.base_model.named_modules(), *(head.named_modules(prefix="classifier") if head is not None else ())]
    return [(name, module) for name, module in named if name.rpartition(".")[2] == "router"]


def dot_products(query_BTD: Tensor, key_BTD: Tensor, heads: int) -> Tensor:
    """QK^T / sqrt(D / heads) with the channels split into heads: (B, heads, T, T)."""
    batch, tokens, width = query_BTD.shape
    size = width // heads
    query_BHTS = query_BTD.view(batch, tokens, heads, size).transpose(1, 2)
    key_BHTS = key_BTD.view(batch, tokens, heads, size).transpose(1, 2)
    return query_BHTS @ key_BHTS.transpose(-1, -2) * size**-0.5
