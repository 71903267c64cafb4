"""The hyper-parameters of a training run."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters of one training run, named as Hugging Face's `TrainingArguments` name them.

    Attributes:
        steps: optimiser steps.
        batch_size: sentences in a batch, over all processes.
        gradient_accumulation_steps: batches whose mean gradient makes one optimiser step.
        learning_rate: peak; it rises linearly over the first `warmup` share of the steps, then falls to 0.
        weight_decay: of AdamW, not applied to biases and LayerNorms.
        max_grad_norm: gradients with a larger norm are scaled down to this one.
        freeze_embeddings: leave the word embedding as it is, which spares its gradient and its optimiser state.
        early_stopping_patience: evaluations without a better score after which the training stops; the model then has
            the weights of its best evaluation. None: all steps are trained, and no score is measured.
        eval_steps: steps between two evaluations; needed for early stopping.
    """

    steps: int
    batch_size: int = 32
    gradient_accumulation_steps: int = 1
    learning_rate: float = 1e-4
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    freeze_embeddings: bool = False
    early_stopping_patience: int | None = None
    eval_steps: int | None = None

    @property
    def batches(self) -> int:
        """Number of batches that the training reads."""
        return self.steps * self.gradient_accumulation_steps
