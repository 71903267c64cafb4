"""What a forward pass hands to an objective, and only what the objective asks for."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from distill.kinds import CLASSIFICATION, logits_and_kind

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
        logits: in the shape of the task's kind (`distill.kinds`), a classification's (B, C).
        kind: of the task.
        hidden_states: L + 1 tensors (B, T, D), the embedding output first; empty when not asked for.
        attention_scores: L tensors (B, H, T, T), QK^T / sqrt(head size) before mask and softmax; or empty.
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


def relations_of(layer: int) -> str:
    """What names the relations of this layer, counted from 1; `RELATIONS` are the last one's."""
    return f"{RELATIONS}.{layer}"


def run(model: nn.Module, batch: Batch, needs: frozenset[str]) -> Outputs:
    """Run a BERT-shaped model and collect `needs`, any of the constants of this module, or `relations_of` one layer.

    Attention scores are computed from what the query and key maps return, so the model is free to use a fused
    attention. A router is any submodule whose name ends in `router`; it returns an object with `probabilities`
    (N, E), None where the choice needs none, and `experts` (N, k), the best first.

    Raises:
        ValueError: relations of more than one layer are needed.
    """
    related = sorted(need for need in needs if need.partition(".")[0] == RELATIONS)
    if len(related) > 1:
        raise ValueError(f"the relations of one layer can be had at a time, not {' and '.join(related)}")
    inputs = {name: batch[name] for name in INPUTS if name in batch}
    hooks: list[Any] = []

    def kept(modules: list[nn.Module]) -> list[Any]:
        """What these modules will return, in the order in which they run."""
        outputs: list[Any] = []
        hooks.extend(m.register_forward_hook(lambda _m, _i, output: outputs.append(output)) for m in modules)
        return outputs

    unwrapped: Any = getattr(model, "module", model)

    def attentions() -> list[Any]:
        return [layer.attention.self for layer in unwrapped.base_model.encoder.layer]

    products = kept([m for a in attentions() for m in (a.query, a.key)] if ATTENTION_SCORES in needs else [])
    chosen = [attentions()[int(need.partition(".")[2] or 0) - 1] for need in related]
    relations = kept([m for a in chosen for m in (a.query, a.key, a.value)])
    routed = kept([module for _, module in routers(unwrapped)] if ROUTINGS in needs else [])
    try:
        outputs = model(**inputs, output_hidden_states=HIDDEN_STATES in needs)
    finally:
        for hook in hooks:
            hook.remove()
    heads = unwrapped.config.num_attention_heads
    logits, kind = logits_and_kind(outputs, unwrapped.config)
    return Outputs(
        logits=logits,
        kind=kind,
        hidden_states=tuple(outputs.hidden_states or ()),
        attention_scores=tuple(dot_products(q, k, heads) for q, k in zip(products[::2], products[1::2], strict=True)),
        relations=tuple(relations),
        routings=tuple((r.probabilities, r.experts[:, 0]) for r in routed if r.probabilities is not None),
    )


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
