"""The hyper-parameters of a training run."""

import math
from dataclasses import dataclass
from typing import Literal

# As in Accelerate: float32 ("no"), or products in bfloat16; "auto" is "bf16" on devices that compute in it natively.
MixedPrecision = Literal["auto", "no", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters of one training run, most of them named as in Hugging Face's `TrainingArguments`.

    Attributes:
        steps: optimizer steps.
        batch_size: sentences in a batch, over all processes.
        gradient_accumulation_steps: number of batches whose mean gradient is used for one optimizer step.
        learning_rate: peak learning rate. It rises linearly during the first `warmup_ratio` fraction of the steps, then
            decreases linearly to 0.
        weight_decay: weight decay of AdamW, not applied to biases and LayerNorms.
        max_grad_norm: gradients with a larger norm are scaled down to this norm.
        freeze_embeddings: do not train the word embedding, which saves its gradient and optimizer state.
        early_stopping_patience: number of evaluations without a better score after which the training stops; the model
            then gets the weights of its best evaluation. None disables early stopping and evaluations.
        eval_steps: number of steps between two evaluations; required for early stopping.
    """

    steps: int
    batch_size: int = 32
    gradient_accumulation_steps: int = 1
    learning_rate: float = 1e-4
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    freeze_embeddings: bool = False
    early_stopping_patience: int | None = None
    eval_steps: int | None = None

    @property
    def batches(self) -> int:
        """Number of batches that the training reads."""
        return self.steps * self.gradient_accumulation_steps


def steps_of_epochs(epochs: float, rows: int, rows_per_step: int) -> int:
    """The number of optimizer steps in which a training passes over its rows `epochs` times, rounded up."""
    return math.ceil(epochs * rows / rows_per_step)
