"""The hyper-parameters of a training run."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters of one training run.

    Attributes:
        steps: optimiser steps, one batch each.
        batch_size: sentences in a batch.
        learning_rate: peak; it rises linearly over the first `warmup` share of the steps, then falls to 0.
        weight_decay: of AdamW, not applied to biases and LayerNorms.
        clip: largest gradient norm.
        freeze_embeddings: leave the word embedding as it is, which spares its gradient and its optimiser state.
    """

    steps: int
    batch_size: int = 32
    learning_rate: float = 1e-4
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    freeze_embeddings: bool = False
