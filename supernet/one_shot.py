"""One set of weights for all sizes: the supernet whose slices are trained and evaluated directly (EfficientBERT,
section 3.3, stage 3).
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PretrainedConfig, PreTrainedModel

from distill.objectives import Objective
from distill.objectives.outputs import Batch
from distill.tasks.types import REGRESSION
from distill.training.loop import TeacherOutputs, train
from distill.training.recipe import Recipe
from search_spaces.architecture import Architecture, Experts
from search_spaces.spaces import Space
from supernet.build import build, head_of
from supernet.experts.split import new_gate
from supernet.inherit import inherit, tables

# Architectures of one step of the sandwich rule: the largest, the smallest, and two drawn ones.
SANDWICH = 4


class OneShotSupernet(nn.Module):
    """A model that computes as any architecture with its layers' graphs and at most its sizes, from its own
    weights: `inherit` slices them in the forward pass, so gradients reach them. Experts are slices too, of which all
    have the same first channels; only the gates that choose among them are weights of their own.

    Args:
        model: built for the largest dense architecture.
        heads: task -> its own linear map on the encoder's output, in place of the model's.
        regressions: those tasks whose head predicts a number.
        experts: all that a layer may have; a gate of the largest number is made for each block where there are any
            with a gate, and its leading rows are the gate of fewer experts.
        frequencies: of token ids (vocabulary,), where experts have balanced_hash routing.
    """

    frequencies: Tensor | None

    def __init__(
        self,
        model: PreTrainedModel,
        heads: Mapping[str, nn.Linear],
        experts: Sequence[Experts] = (),
        frequencies: Tensor | None = None,
        regressions: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.regressions = frozenset(regressions)
        self.model = model
        self.heads = nn.ModuleDict(heads)
        self.task = next(iter(heads))
        self.architecture: Architecture | None = None
        self.register_buffer("frequencies", frequencies, persistent=False)
        gates = max((one.count for one in experts if one.gated), default=0)
        self.gates = nn.ParameterDict()
        for name, weight in model.named_parameters():
            if gates and name.endswith(".expand.weight"):
                # A dot cannot be part of a parameter's own name.
                place = name.replace("expand", "router").replace(".", "/")
                self.gates[place] = new_gate(gates, weight.shape[1], len(self.gates), weight.detach())
        # In a tuple, as it is no part of this module: it has no weights.
        self._shell: tuple[PreTrainedModel, ...] = ()
        self._tables: dict[str, Tensor] = {}

    def activate(self, architecture: Architecture | None, task: str) -> None:
        """Compute as this architecture, or as the largest one, with this task's head from here on."""
        self.model.config.problem_type = REGRESSION if task in self.regressions else None
        if architecture != self.architecture:
            self._shell = ()
        self.architecture, self.task = architecture, task
        if architecture is not None and not self._shell:
            with torch.device("meta"):
                config = self.model.config
                self._shell = (build(architecture, head_of(self.model), config.num_labels, config),)
            self.set_attn_implementation(self.model.config._attn_implementation)
            prefix = f"{self.model.base_model_prefix}.encoder.layer."
            found = tables(architecture, prefix, self.frequencies)
            self._tables = {name: table.to(self.model.device) for name, table in found.items()}

    def forward(self, **inputs: Any) -> Any:
        """As the model's own, with the logits of the task."""
        if self.architecture is None:
            head = self.heads[self.task]
            place = head_name(self.model)
            given: dict[str, Tensor] = {f"{place}.{name}": value for name, value in head.named_parameters()}
            return functional_call(self.model, given, kwargs=inputs)
        (shell,) = self._shell
        shell.train(self.training)
        return functional_call(shell, self.state(), kwargs=inputs)

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers of a model of the active architecture with this task's head: slices of these weights,
        by which gradients reach them.
        """
        assert self.architecture is not None
        place = head_name(self.model)
        given = {f"{place}.{name}": value for name, value in self.heads[self.task].named_parameters()}
        weights = dict(self.model.named_parameters()) | {
            place.replace("/", "."): weight for place, weight in self.gates.items()
        }
        ffn = {name: weight for name, weight in weights.items() if ".ffn." in name}
        rest = {name: weight for name, weight in weights.items() if ".ffn." not in name}
        sliced = inherit(ffn | self._tables, self.architecture)
        return dict(self.model.named_buffers()) | rest | sliced | given

    @property
    def base_model(self) -> Any:
        """The encoder that computes."""
        return (*self._shell, self.model)[0].base_model

    @property
    def config(self) -> PretrainedConfig:
        """Of the largest architecture."""
        return self.model.config

    def set_attn_implementation(self, name: str) -> None:
        """As the model's own."""
        for model in (self.model, *self._shell):
            model.set_attn_implementation(name)


def head_name(model: nn.Module) -> str:
    """The name of a model's head."""
    return "qa_outputs" if hasattr(model, "qa_outputs") else "classifier"


def interleaved(turns: Mapping[str, int], seed: int) -> list[str]:
    """Every task as often as `turns` says, spread evenly; those of one round in random order."""
    rng = random.Random(seed)
    places = [((number + rng.random()) / most, task) for task, most in turns.items() for number in range(most)]
    return [task for _, task in sorted(places)]


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
    extremes: tuple[Architecture, ...] = (),
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train the shared weights in place on all tasks; returns the losses.

    Every step trains one architecture, drawn uniformly from the space, on a batch of one task. With `extremes`, the
    largest and the smallest architecture, every step adds up the gradients of those and two drawn ones on the same
    batch (the sandwich rule).

    Args:
        turns: the task of every step.
        batches: task -> its training batches, `recipe.gradient_accumulation_steps` for each of its turns.
        teachers: task -> outputs of its teacher.
    """
    streams = {task: iter(stream) for task, stream in batches.items()}
    supernet.activate(None, supernet.task)  # so that what the training asks of its encoder is asked of the weights

    def scheduled() -> Iterator[Batch]:
        for step, task in enumerate(turns):
            rng = random.Random(f"{seed}/{step}")
            drawn = [space.sample(rng) for _ in range(SANDWICH - 2 if extremes else 1)]
            for batch in islice(streams[task], recipe.gradient_accumulation_steps):
                for architecture in (*extremes, *drawn):
                    supernet.activate(architecture, task)
                    yield batch

    return train(
        supernet,
        scheduled(),
        objective,
        recipe,
        accelerator=accelerator,
        teacher=lambda step, batch: teachers[supernet.task](step, batch),
        accumulate=(SANDWICH if extremes else 1) * recipe.gradient_accumulation_steps,
        seed=seed,
        after_step=after_step,
    )
