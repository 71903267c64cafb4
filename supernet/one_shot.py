"""The one-shot supernet: one set of shared weights whose slices are trained and evaluated directly, as candidates
(EfficientBERT, section 3.2, stage 3).
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PretrainedConfig, PreTrainedModel

from distill.encoders.family import BLOCK_GATE, family_of, in_block
from distill.encoders.parts import encoder_layers, output_layer
from distill.objectives import Objective
from distill.objectives.outputs import Batch
from distill.tasks.types import TaskType, task_type_of
from distill.training.checkpoint import Checkpoint
from distill.training.loop import TeacherOutputs, train
from distill.training.recipe import Recipe
from search_spaces.architecture import Architecture
from search_spaces.layer import Experts
from search_spaces.spaces import Space
from supernet.build import build
from supernet.experts.routers import initial_gate, routing_tables
from supernet.inherit import attention_slice, inherit

# The number of architectures that are drawn in each step of the sandwich rule, besides the largest and the smallest.
DRAWN_IN_SANDWICH = 2


class OneShotSupernet(nn.Module):
    """A model that can compute any architecture with the graphs of its layers and at most their sizes, from one set of
    shared weights. `inherit` slices the weights in the forward pass, so gradients flow back to them.

    Experts are slices too. Only their gates have additional weights: each block has one gate for the largest number of
    experts, of which the leading rows are used if there are fewer. The attention of an architecture with fewer experts
    there consists of the first ones.

    Args:
        model: a model of the largest architecture, whose FFNs are dense.
        heads: for each task the linear map to its outputs, which replaces the model's.
        experts: all choices of experts in the search space.
        frequencies: frequency of every token id (vocabulary,), for routings that need it.
        problem_types: task -> the `problem_type` of a model's configuration, which says what its head predicts.
        seed: seed for routing tables and gates.
    """

    frequencies: Tensor | None

    def __init__(
        self,
        model: PreTrainedModel,
        heads: Mapping[str, nn.Linear],
        experts: Sequence[Experts] = (),
        frequencies: Tensor | None = None,
        problem_types: Mapping[str, str | None] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.problem_types = dict(problem_types or {})
        self.seed = seed
        self.model = model
        self.heads = nn.ModuleDict(heads)
        self.task = next(iter(heads))
        self.architecture: Architecture | None = None
        self.register_buffer("frequencies", frequencies, persistent=False)
        most_experts = max((choice.count for choice in experts if choice.gated), default=0)
        self.gates = nn.ParameterDict()
        self.family = family_of(model)
        self.prefix = self.family.prefix(name for name, _ in model.named_parameters())
        blocks = [(i, j, block) for i, layer in enumerate(encoder_layers(model)) for j, block in enumerate(layer.ffn)]
        for number, (i, j, block) in enumerate(blocks if most_experts else ()):
            # The name of a parameter must not contain a dot.
            key = f"{self.prefix}{i}.{BLOCK_GATE.format(j)}".replace(".", "/")
            weight = block.expand.weight.detach()
            self.gates[key] = initial_gate(most_experts, weight.shape[1], number, weight, seed)
        # A weightless model of the active architecture; in a tuple so that it is not registered as a submodule.
        self._shell: tuple[PreTrainedModel, ...] = ()
        self._tables: dict[str, Tensor] = {}

    def activate(self, architecture: Architecture | None, task: str) -> None:
        """Switch to this architecture, or to the largest one if None, and to the head of this task."""
        self.model.config.problem_type = self.problem_types.get(task)
        if architecture != self.architecture:
            self._shell = ()
        self.architecture, self.task = architecture, task

    def _build_shell(self) -> None:
        """Build the weightless model of the active architecture unless it is there already."""
        if self.architecture is None or self._shell:
            return
        with torch.device("meta"):
            config = self.model.config
            self._shell = (build(self.architecture, task_type_of(self.model), config.num_labels, config),)
        self.set_attn_implementation(self.model.config._attn_implementation)
        tables = routing_tables(self.architecture, self.prefix, self.frequencies, self.seed)
        self._tables = {name: table.to(self.model.device) for name, table in tables.items()}

    def forward(self, **inputs: Any) -> Any:
        """The outputs of the active architecture, with the logits of the active task."""
        if self.architecture is None:
            return functional_call(self.model, self._head_weights(), kwargs=inputs)
        state = self.state()
        (shell,) = self._shell
        shell.train(self.training)
        return functional_call(shell, state, kwargs=inputs)

    def state(self) -> dict[str, Tensor]:
        """The parameters and buffers of a model of the active architecture with the head of the active task, as
        differentiable slices of the shared weights.
        """
        assert self.architecture is not None
        self._build_shell()
        weights = dict(self.model.named_parameters()) | {
            key.replace("/", "."): weight for key, weight in self.gates.items()
        }
        blocks = {
            name: weight
            for name, weight in weights.items()
            if (parts := self.family.split(name)) and in_block(parts[2])
        }
        others = {name: weight for name, weight in weights.items() if name not in blocks}
        others = attention_slice(others, self.architecture)
        # The other weights come last: they replace the new attention gates from `inherit` by the model's learned ones.
        slices = inherit(blocks | self._tables, self.architecture)
        return dict(self.model.named_buffers()) | slices | others | self._head_weights()

    def _head_weights(self) -> dict[str, Tensor]:
        """The parameters of the active task's head, under the names of the model's own head."""
        prefix = output_layer(self.model)
        return {f"{prefix}.{name}": value for name, value in self.heads[self.task].named_parameters()}

    @property
    def base_model(self) -> Any:
        """The encoder of the active architecture."""
        self._build_shell()
        return (*self._shell, self.model)[0].base_model

    @property
    def task_type(self) -> TaskType | None:
        """The type of the active task."""
        return task_type_of(self.model)

    @property
    def config(self) -> PretrainedConfig:
        """The configuration of the largest architecture."""
        return self.model.config

    def set_attn_implementation(self, name: str) -> None:
        """As `PreTrainedModel.set_attn_implementation`."""
        for model in (self.model, *self._shell):
            model.set_attn_implementation(name)


def interleaved(turns: Mapping[str, int], seed: int) -> list[str]:
    """A schedule of tasks in which each task occurs `turns[task]` times, evenly spread; the order of tasks that fall on
    the same place is random.
    """
    rng = random.Random(seed)
    positions = [((turn + rng.random()) / count, task) for task, count in turns.items() for turn in range(count)]
    return [task for _, task in sorted(positions)]


def train_one_shot(
    supernet: OneShotSupernet,
    space: Space,
    turns: Sequence[str],
    batches: Mapping[str, Iterable[Batch]],
    objective: Objective,
    recipe: Recipe,
    *,
    teachers: Mapping[str, TeacherOutputs],
    accelerator: Accelerator,
    fixed: tuple[Architecture, ...] = (),
    drawn: int = 1,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> list[float]:
    """Train the shared weights in place on all tasks; returns the losses.

    Every step accumulates the gradients of one or several architectures on the same batch of one task. By the sandwich
    rule (Yu and Huang, 2019) these are the largest, the smallest and `DRAWN_IN_SANDWICH` random ones; in DynaBERT (Hou
    et al., 2020) one of every width.

    Args:
        fixed: the architectures that every step trains.
        drawn: how many it also samples from the space.
        turns: the task of every step, as from `interleaved`.
        batches: for each task its training batches, `recipe.gradient_accumulation_steps` for each of its turns.
        teachers: for each task the outputs of its teacher.
        after_step: called with the number of finished steps and the loss of the last one.
        checkpoint: makes the training resumable.
    """
    streams = {task: iter(stream) for task, stream in batches.items()}
    # The training loop reads properties of the encoder, and only the largest architecture has weights of its own.
    supernet.activate(None, supernet.task)

    def scheduled_batches() -> Iterator[Batch]:
        for step, task in enumerate(turns):
            rng = random.Random(f"{seed}/{step}")
            architectures = (*fixed, *(space.sample(rng) for _ in range(drawn)))
            for batch in islice(streams[task], recipe.gradient_accumulation_steps):
                for architecture in architectures:
                    supernet.activate(architecture, task)
                    yield batch

    return train(
        supernet,
        scheduled_batches(),
        objective,
        replace(recipe, gradient_accumulation_steps=(len(fixed) + drawn) * recipe.gradient_accumulation_steps),
        accelerator=accelerator,
        teacher=lambda step, batch: teachers[supernet.task](step, batch),
        seed=seed,
        after_step=after_step,
        checkpoint=checkpoint,
    )
