"""Early stopping: a training ends when its score stops improving, and restores the weights of the best score."""

import math
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor, nn

from distill.training.recipe import Recipe

# What a checkpoint has.
STATE = ("best_score", "without_improvement", "best_weights")


class EarlyStopping:
    """Tracks the best score of a training, its weights, and the number of evaluations since then."""

    def __init__(self, model: nn.Module, recipe: Recipe, score: Callable[[], float], accelerator: Accelerator) -> None:
        assert recipe.early_stopping_patience is not None
        if not recipe.eval_steps:
            raise ValueError("early stopping needs eval_steps, the number of steps between two evaluations")
        self.patience, self.eval_steps = recipe.early_stopping_patience, recipe.eval_steps
        self.steps = recipe.steps
        self.model, self.score, self.accelerator = model, score, accelerator
        self.best_score, self.without_improvement = -math.inf, 0
        self.best_weights: dict[str, Tensor] = {}

    @property
    def should_stop(self) -> bool:
        return self.without_improvement >= self.patience

    def evaluate(self, step: int) -> None:
        """Evaluate the model if an evaluation is due after this step, counted from 1, or if it is the last one."""
        if step % self.eval_steps and step != self.steps:
            return
        # That of the first process: rounding may differ between processes, but all must take the same decision.
        score = float(broadcast(torch.tensor(self.score(), dtype=torch.float64, device=self.accelerator.device)))
        if score > self.best_score:
            self.best_score, self.without_improvement = score, 0
            self.best_weights = {name: tensor.cpu().clone() for name, tensor in self.model.state_dict().items()}
        else:
            self.without_improvement += 1

    def restore_best(self) -> None:
        """Restore the weights of the best score, if there is one."""
        if self.best_weights:
            self.model.load_state_dict(self.best_weights)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update({name: state[name] for name in STATE})
