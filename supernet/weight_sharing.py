"""One set of weights for all sizes: the supernet whose slices are trained and evaluated directly (EfficientBERT,
section 3.3, stage 3).
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PretrainedConfig, PreTrainedModel

from distill.loop import TeacherOutputs, train
from distill.objectives import Objective
from distill.outputs import Batch
from distill.recipe import Recipe
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space
from supernet.inherit import inherit

# Architectures of one step of the sandwich rule: the largest, the smallest, and two drawn ones.
SANDWICH = 4


class SharedSupernet(nn.Module):
    """A classifier that computes as any architecture with its layers' graphs and at most its sizes, from its own
    weights: `inherit` slices them in the forward pass, so gradients reach them.

    Args:
        model: built for the largest architecture.
        heads: task -> classifier on the pooled output, which all tasks share.
    """

    def __init__(self, model: PreTrainedModel, heads: Mapping[str, nn.Linear]) -> None:
        super().__init__()
        self.model = model
        self.heads = nn.ModuleDict(heads)
        self.blocks = [list(layer.ffn) for layer in self.base_model.encoder.layer]
        self.architecture: Architecture | None = None
        self.task = next(iter(heads))

    def activate(self, architecture: Architecture | None, task: str) -> None:
        """Compute as this architecture, or as the largest one, with this task's head from here on."""
        self.architecture, self.task = architecture, task

    def forward(self, **inputs: Any) -> Any:
        """As the model's own: logits (B, C of the task), and hidden states where they are asked for."""
        head = self.heads[self.task]
        weights: dict[str, Tensor] = {f"classifier.{name}": value for name, value in head.named_parameters()}
        if self.architecture is None:
            return functional_call(self.model, weights, kwargs=inputs)
        ffn = {name: value for name, value in self.model.named_parameters() if ".ffn." in name}
        weights |= inherit(ffn, self.architecture)
        layers = self.base_model.encoder.layer
        try:
            for layer, blocks, genes in zip(layers, self.blocks, self.architecture.layers, strict=True):
                layer.ffn = nn.ModuleList(blocks[: genes.stack])
            return functional_call(self.model, weights, kwargs=inputs)
        finally:
            for layer, blocks in zip(layers, self.blocks, strict=True):
                layer.ffn = nn.ModuleList(blocks)

    @property
    def base_model(self) -> Any:
        """The encoder."""
        return self.model.base_model

    @property
    def config(self) -> PretrainedConfig:
        """Of the largest architecture."""
        return self.model.config

    def set_attn_implementation(self, name: str) -> None:
        """As the model's own."""
        self.model.set_attn_implementation(name)


def train_shared(
    supernet: SharedSupernet,
    space: Space,
    batches: Mapping[str, Iterable[Batch]],
    objective: Objective,
    recipe: Recipe,
    *,
    teachers: Mapping[str, TeacherOutputs],
    accelerator: Accelerator,
    smallest: Architecture | None = None,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train the shared weights in place on all tasks; returns the losses.

    Every step trains one architecture, drawn uniformly from the space, on a batch of one task; the tasks take turns
    in an order that is shuffled anew in every round. With `smallest` every step adds up the gradients of the whole
    supernet, that architecture and two drawn ones on the same batch (the sandwich rule).

    Args:
        batches: task -> its training batches; they must last for the task's share of the steps, rounded up.
        teachers: task -> outputs of its teacher.
    """
    tasks = list(batches)
    streams = {task: iter(stream) for task, stream in batches.items()}

    def scheduled() -> Iterator[Batch]:
        order: list[str] = []
        for step in range(recipe.steps):
            rng = random.Random(f"{seed}/{step}")
            if not order:
                order = rng.sample(tasks, len(tasks))
            task = order.pop()
            batch = next(streams[task])
            drawn = [space.sample(rng) for _ in range(1 if smallest is None else SANDWICH - 2)]
            for architecture in drawn if smallest is None else [None, smallest, *drawn]:
                supernet.activate(architecture, task)
                yield batch

    return train(
        supernet,
        scheduled(),
        objective,
        recipe,
        accelerator=accelerator,
        teacher=lambda step, batch: teachers[supernet.task](step, batch),
        accumulate=1 if smallest is None else SANDWICH,
        seed=seed,
        after_step=after_step,
    )
