"""What a forward pass hands to an objective, and only what the objective asks for."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Batch = dict[str, Tensor]

LOGITS = "logits"
HIDDEN_STATES = "hidden_states"
ATTENTION_SCORES = "attention_scores"


@dataclass(frozen=True)
class Outputs:
    """Outputs of one batch: B sentences of T tokens, L layers, H heads, width D, C classes.

    Attributes:
        logits: (B, C).
        hidden_states: L + 1 tensors (B, T, D), the embedding output first; empty when not asked for.
        attention_scores: L tensors (B, H, T, T), QK^T / sqrt(head size) before mask and softmax; or empty.
    """

    logits: Tensor
    hidden_states: tuple[Tensor, ...] = ()
    attention_scores: tuple[Tensor, ...] = ()


def run(model: nn.Module, batch: Batch, needs: frozenset[str]) -> Outputs:
    """Run a BERT-shaped model and collect `needs`, any of the constants of this module.

    Attention scores are computed from what the query and key maps return, so the model is free to use a fused
    attention.
    """
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    kept: list[Tensor] = []
    hooks = []
    unwrapped: Any = getattr(model, "module", model)
    if ATTENTION_SCORES in needs:
        for layer in unwrapped.base_model.encoder.layer:
            for projection in (layer.attention.self.query, layer.attention.self.key):
                hooks.append(projection.register_forward_hook(lambda _m, _i, output: kept.append(output)))
    try:
        outputs = model(**inputs, output_hidden_states=HIDDEN_STATES in needs)
    finally:
        for hook in hooks:
            hook.remove()
    heads = unwrapped.config.num_attention_heads
    scores = tuple(_scores(kept[i], kept[i + 1], heads) for i in range(0, len(kept), 2))
    return Outputs(outputs.logits, tuple(outputs.hidden_states or ()), scores)


def _scores(query_BTD: Tensor, key_BTD: Tensor, heads: int) -> Tensor:
    batch, tokens, width = query_BTD.shape
    size = width // heads
    query_BHTS = query_BTD.view(batch, tokens, heads, size).transpose(1, 2)
    key_BHTS = key_BTD.view(batch, tokens, heads, size).transpose(1, 2)
    return query_BHTS @ key_BHTS.transpose(-1, -2) * size**-0.5
