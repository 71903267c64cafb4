"""Specifications of objectives: how they are created, what they need besides batches, and how to train with them."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from distill.encoders.heads import has_all_heads_in_order
from distill.objectives.base import Objective
from distill.objectives.outputs import ATTENTION_SCORES, RELATIONS, Batch
from distill.tasks.encoding import Encoded

Setting = float | int | str | bool
Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class ObjectivePhase:
    """A training phase with its own settings of the objective.

    Attributes:
        settings: the objective's settings in this phase that differ from its defaults.
        fraction: of the training's steps; the fractions of all phases add up to 1.
        learning_rate: factor on the learning rate of the training.
    """

    settings: Settings
    fraction: float = 1.0
    learning_rate: float = 1.0


class TrainingContext(Protocol):
    """A context manager around the training of a phase, which modifies the models during that time.

    It receives the student, the teacher (the model itself, so saved outputs are not enough), all settings of the
    objective including defaults, and as `steps` the number of batches of the phase, which is larger than that of the
    optimizer's steps if gradients are accumulated. On entry, it returns a function that wraps the batches of the
    training and may count or change them. It raises ValueError for models that it cannot be used with, even if their
    weights are on the "meta" device.
    """

    def __call__(
        self, student: PreTrainedModel, teacher: PreTrainedModel, *, settings: Settings, steps: int, seed: int
    ) -> AbstractContextManager[Callable[[Iterable[Batch]], Iterable[Batch]]]: ...


@dataclass(frozen=True)
class ObjectiveSpec:
    """Everything that training and commands need to know about an objective; the values of `OBJECTIVES`.

    Attributes:
        factory: `factory(student, teacher, **settings)` takes two Hugging Face configurations and returns the
            `Objective`. The settings are its keyword-only parameters whose default is a number, a string or a bool. It
            raises ValueError for models or settings that cannot be used.
        with_labels: settings that replace the factory's defaults if the training rows have labels.
        without_labels: settings for text without labels, on which the student's head is not trained; None if the
            objective cannot learn from such text.
        needs_teacher: whether the objective needs a teacher; without one the factory's `teacher` is None.
        phases: maps the settings of a training to its phases; by default a single one.
        row_arguments: maps the training rows (None if models are only being checked) to further keyword arguments of
            the factory. Such an objective is bound to these rows and cannot be used for several tasks.
        of_one_task: whether an objective with these settings cannot be used for several tasks for another reason, such
            as parameters for each class.
        training_context: context manager in which `distill.training.distillation.distil` runs each phase.
    """

    factory: Callable[..., Objective]
    with_labels: Settings = field(default_factory=dict)
    without_labels: Settings | None = None
    needs_teacher: bool = True
    phases: Callable[[Settings], tuple[ObjectivePhase, ...]] = lambda settings: (ObjectivePhase(settings),)
    row_arguments: Callable[[Encoded | None], Mapping[str, Any]] | None = None
    of_one_task: Callable[[Settings], bool] = lambda _settings: False
    training_context: TrainingContext | None = None

    @property
    def name(self) -> str:
        """The objective's name for error messages."""
        return self.factory.__name__

    @property
    def defaults(self) -> dict[str, Setting]:
        """All settings with their defaults."""
        parameters = inspect.signature(self.factory).parameters.values()
        keywords = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        # This includes bool, a subclass of int.
        return {p.name: p.default for p in keywords if isinstance(p.default, int | float | str)}

    def settings_without_labels(self) -> dict[str, Setting]:
        """The settings for learning from text without labels, as in the papers' pre-training.

        Raises:
            ValueError: the objective cannot learn from text without labels.
        """
        if self.without_labels is None:
            raise ValueError(f"{self.name} learns from labels and predictions, but text without labels has neither")
        return dict(self.without_labels)

    def settings_with_labels(self, settings: Settings) -> dict[str, Setting]:
        """`settings`, completed by `with_labels`, the defaults for rows with labels."""
        return {**self.with_labels, **settings}

    def shares_tasks(self, settings: Settings) -> bool:
        """Whether one objective with these settings can be used for several tasks."""
        return self.row_arguments is None and not self.of_one_task(settings)

    def make(
        self, settings: Settings, student: Any, teacher: Any, rows: Encoded | None = None, seed: int = 0
    ) -> Objective:
        """Create the objective for a student and a teacher with these Hugging Face configurations.

        Args:
            settings: the settings that differ from the defaults; completed by `with_labels` if `rows` have labels.
            teacher: None if there is no teacher.
            rows: the training rows.
            seed: determines the initial values of learned projections.

        Raises:
            ValueError: the objective cannot be used with these models or these settings.
        """
        if teacher is None and self.needs_teacher:
            raise ValueError(f"{self.name} needs a teacher: give one, or choose an objective that learns without")
        arguments: dict[str, Any] = dict(settings)
        if rows is not None and rows.labels is not None:
            arguments = dict(self.settings_with_labels(settings))
        if self.row_arguments is not None:
            arguments |= self.row_arguments(rows)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            objective = self.factory(student, teacher, **arguments)
        for term in objective.terms:
            for side, model, needs in (("student", student, term.needs), ("teacher", teacher, term.teacher_needs)):
                of_attention = {need.partition(".")[0] for need in needs} & {ATTENTION_SCORES, RELATIONS}
                if of_attention and not term.by_heads and not has_all_heads_in_order(model):
                    raise ValueError(
                        f"{self.name} compares attention of {model.num_attention_heads} heads in their order, and the "
                        f"{side}'s layers have other ones: choose an objective that compares none, such as kd"
                    )
        if not any(term.teaches for term in objective.terms):
            raise ValueError(f"{self.name} has nothing to learn from: all of its weights are 0")
        return objective
