"""A training run: models that are trained one after the other, each with the one before it as its teacher."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from distill.objectives import Settings
from distill.tasks.encoding import Encoded
from distill.tasks.types import MASKED_LM
from distill.training.distillation import distil
from distill.training.evaluation import EvalSet
from distill.training.layout import ARCHITECTURE_FILE, CONFIG_FILE, OPTIONS_FILE, STATE
from distill.training.loop import Diverged
from distill.training.measure import Measurements, measure
from distill.training.progress import ProgressCallback, step_reports
from distill.training.recipe import Recipe
from distill.training.teacher import load_model
from foundation.errors import UserError
from foundation.files import LOCK_FILE, save_pretrained, scratch_folder, write_text
from search_spaces.architecture import Architecture

TEACHER = "teacher"


@dataclass(frozen=True, eq=False)
class Examples:
    """What a run trains on and, if that is a task, what it measures on; text without labels has no eval set."""

    task_type: str
    tokenizer: Any
    train: Encoded
    eval_set: EvalSet | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes. On text the head has two dummy classes and is not trained."""
        return ("0", "1") if self.eval_set is None else self.eval_set.task.labels

    @property
    def headless(self) -> bool:
        """Whether only the encoder is trained: on text without masked words to predict."""
        return self.eval_set is None and self.task_type != MASKED_LM

    @property
    def longest(self) -> int:
        """The number of tokens of the longest example."""
        parts = [self.train, *([] if self.eval_set is None else [self.eval_set.encoded])]
        return max(int(part.lengths.max()) for part in parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """How one model of a run is made and trained.

    Attributes:
        make: makes it from its teacher, which the first model does not have.
        recipe: how it is trained; None: it is used as it is.
        objective, settings: a name of `distill.objectives.OBJECTIVES`, and the settings that differ from its defaults.
        architecture: if it is known, costs are measured too, and it is saved beside the model.
        measured_before: whether the model is also measured before its training.
    """

    make: Callable[[PreTrainedModel | None], PreTrainedModel]
    recipe: Recipe | None = None
    objective: str = "none"
    settings: Settings = field(default_factory=dict)
    architecture: Architecture | None = None
    measured_before: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRun:
    """What is trained, on what, and where it is saved.

    Attributes:
        models: by their names, in the order in which they are trained.
        out: the folder of the last model; the others that are trained have subfolders of their names.
        options: what must be the same when the run is resumed; written to options.json.
        tensorboard: the folder for logged losses.
    """

    models: Mapping[str, Training]
    examples: Examples
    out: Path
    options: Mapping[str, Any]
    seed: int = 0
    tensorboard: Path | None = None

    @property
    def student(self) -> str:
        """The name of the last model."""
        return list(self.models)[-1]


def run_training(run: TrainingRun, accelerator: Accelerator, on_progress: ProgressCallback) -> Measurements:
    """Train, measure and save all models that an interrupted run has not finished.

    Raises:
        UserError: a model cannot be made, or its training diverged.
        ValueError: an objective cannot be used with its models and the examples.
        OSError: a folder cannot be written.
    """
    examples, measured, model = run.examples, Measurements(), None

    def measure_as(name: str, model: PreTrainedModel, architecture: Architecture | None) -> None:
        if examples.eval_set is not None:
            on_progress(f"{name}: measuring", None)
        known = {} if architecture is None else {name: architecture}
        saved = model.base_model if examples.headless else model
        measured.update(measure({name: saved}, examples.eval_set, accelerator, architectures=known))

    for name, training in run.models.items():
        torch.manual_seed(run.seed)  # for a new head
        teacher, model = model, training.make(model)
        before = f"{name}, before"
        if training.recipe is not None and training.measured_before:
            measure_as(before, model, training.architecture)
        if training.recipe is not None:
            model = _trained(run, name, model, teacher, accelerator, on_progress)
        if training.recipe is None or training.recipe.steps or not training.measured_before:
            measure_as(name, model, training.architecture)
        else:
            measured[name] = measured[before]
    return measured


def _trained(
    run: TrainingRun,
    name: str,
    model: PreTrainedModel,
    teacher: PreTrainedModel | None,
    accelerator: Accelerator,
    on_progress: ProgressCallback,
) -> PreTrainedModel:
    """The model after its training, saved, in eval mode; or the saved one, if an interrupted run had finished it."""
    training, examples = run.models[name], run.examples
    folder = run.out if name == run.student else run.out / name.replace(" ", "-")
    recipe = training.recipe
    assert recipe is not None
    if (folder / CONFIG_FILE).exists():
        model = load_model(str(folder), examples.labels, examples.task_type, new_head=examples.headless)
    else:
        accelerator.wait_for_everyone()  # until all processes have seen the folder as it was
        if accelerator.is_main_process:
            run.out.mkdir(parents=True, exist_ok=True)
            write_text(run.out / OPTIONS_FILE, json.dumps(run.options, indent=2) + "\n")
        what = f"{name}: {'fine-tuning' if teacher is None else training.objective}"
        with step_reports(on_progress, what, recipe.steps, run.tensorboard, name, accelerator) as after_step:
            try:
                distil(
                    model,
                    teacher,
                    examples.train,
                    training.objective,
                    training.settings,
                    recipe,
                    accelerator=accelerator,
                    tokenizer=examples.tokenizer,
                    seed=run.seed,
                    after_step=after_step,
                    state_folder=folder / STATE,
                )
            except Diverged as error:
                raise UserError(f"{name}: {error}; a lower learning rate may help") from None

        def save(draft: Path) -> None:
            save_pretrained(draft, model.base_model if examples.headless else model, examples.tokenizer)
            if training.architecture is not None:
                training.architecture.save(draft / ARCHITECTURE_FILE)

        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            write_into(folder, CONFIG_FILE, save)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder / STATE, ignore_errors=True)
    return model.eval()


def write_into(folder: Path, last: str, write: Callable[[Path], object]) -> None:
    """Add files to a folder that may have others: `write` creates them in another folder, from which they are moved,
    `last` as the last one: if this file exists, all the others do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with scratch_folder(folder) as draft:
        write(draft)
        files = (file for file in draft.iterdir() if file.name != LOCK_FILE)
        for file in sorted(files, key=lambda file: file.name == last):
            os.replace(file, folder / file.name)
