"""An objective as a value: how it is made, what it needs beside its batches, and how a training with it proceeds."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from distill.objectives.base import Objective
from distill.objectives.outputs import Batch
from distill.tasks.encoding import Encoded

Setting = float | int | str | bool
Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class ObjectivePhase:
    """A part of a training with settings of its own.

    Attributes:
        settings: the settings of the objective in this phase, those that differ from its defaults.
        share: the phase's share of the training's steps; the shares of all phases add up to 1.
        learning_rate: factor on the learning rate of the training.
    """

    settings: Settings
    share: float = 1.0
    learning_rate: float = 1.0


def single_phase(settings: Settings) -> tuple[ObjectivePhase, ...]:
    """The phases of an objective that is trained with the same settings from the first step to the last."""
    return (ObjectivePhase(settings),)


class TrainingContext(Protocol):
    """A context manager around the training of a phase, which changes the models while the training lasts.

    It receives the student, the teacher (which then takes part itself, so that saved outputs cannot stand in for it),
    all settings of the objective, defaults included, and the number of steps of the phase. On entering, it returns a
    function through which the training's batches pass: it may count or change them. It raises ValueError for models
    that it cannot be used with, also when their weights are on the "meta" device.
    """

    def __call__(
        self, student: PreTrainedModel, teacher: PreTrainedModel, *, settings: Settings, steps: int, seed: int
    ) -> AbstractContextManager[Callable[[Iterable[Batch]], Iterable[Batch]]]: ...


@dataclass(frozen=True)
class ObjectiveSpec:
    """What training and commands need to know of an objective; `OBJECTIVES` has one of these under every name.

    Attributes:
        factory: `factory(student, teacher, **settings)` of two Hugging Face configurations returns the `Objective`.
            Its keyword-only parameters with a default that is a number, a text or a bool are the settings. It raises
            ValueError for models or settings that cannot be used.
        with_labels: defaults in place of the factory's where the training rows have labels.
        without_labels: settings for text without labels, on which the outputs of the student's head are not trained;
            None where the objective cannot learn from such text.
        needs_teacher: whether the objective needs a teacher; without one the factory's `teacher` is None.
        phases: maps the settings of a training to its phases.
        row_arguments: maps the training rows (None while models are only checked) to further keyword arguments of the
            factory. An objective with such arguments belongs to these rows and cannot be used for several tasks.
        training_context: wraps the training of every phase by `distill.training.distillation.distil`.
    """

    factory: Callable[..., Objective]
    with_labels: Settings = field(default_factory=dict)
    without_labels: Settings | None = None
    needs_teacher: bool = True
    phases: Callable[[Settings], tuple[ObjectivePhase, ...]] = single_phase
    row_arguments: Callable[[Encoded | None], Mapping[str, Any]] | None = None
    training_context: TrainingContext | None = None

    @property
    def name(self) -> str:
        """The name of the objective in messages."""
        return self.factory.__name__

    @property
    def defaults(self) -> dict[str, Setting]:
        """All settings with their defaults."""
        parameters = inspect.signature(self.factory).parameters.values()
        keywords = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        # A bool is an int, too.
        return {p.name: p.default for p in keywords if isinstance(p.default, int | float | str)}

    def settings_without_labels(self) -> dict[str, Setting]:
        """The settings with which the objective learns from text without labels, as in the papers' pre-training.

        Raises:
            ValueError: it cannot.
        """
        if self.without_labels is None:
            raise ValueError(f"{self.name} learns from labels and predictions, which this text has not")
        return dict(self.without_labels)

    def settings_with_labels(self, settings: Settings) -> dict[str, Setting]:
        """`settings` completed for rows with labels."""
        return {**self.with_labels, **settings}

    def make(
        self, settings: Settings, student: Any, teacher: Any, rows: Encoded | None = None, seed: int = 0
    ) -> Objective:
        """The objective between models of these Hugging Face configurations.

        Args:
            settings: those that differ from the defaults; where `rows` have labels they are completed by `with_labels`.
            teacher: None where there is no teacher.
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
        if not any(term.teaches for term in objective.terms):
            raise ValueError(f"{self.name} has nothing to learn from: all of its weights are 0")
        return objective
