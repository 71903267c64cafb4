"""The chain of `python -m distill`: a teacher, assistants and a student, each trained, evaluated and saved in turn."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from transformers import PreTrainedModel
from transformers.utils import logging

from distill.cli import DONE
from distill.command.options import OPTIONS_FILE
from distill.command.report import Measurements, measure, print_report, write_report
from distill.command.rows import Rows, check_sizes, load_rows
from distill.files import save_pretrained, write_text
from distill.tasks.encoding import training_batches
from distill.tasks.types import MASKED_LM
from distill.training.checkpoint import Checkpoint
from distill.training.distillation import distil, masked
from distill.training.evaluation import Load, expert_load
from distill.training.loop import Diverged, make_accelerator
from distill.training.progress import Progress, losses
from distill.training.recipe import Recipe
from distill.training.students import load_student
from distill.training.teacher import finetune, load_config, load_model, load_tokenizer
from search_spaces.errors import UserError

CONFIG_FILE = "config.json"
# Subfolder with the training state of a model, which is removed when its training is done.
STATE = "state"


def run(options: Any, settings: dict[str, Any], recorded: dict[str, Any]) -> int:
    """Train, evaluate and save the whole chain.

    Args:
        settings: the objective's settings that differ from its defaults.
        recorded: the options that determine the results, which are saved beside them.

    Raises:
        UserError: the models, rows and settings are incompatible, or a training diverged.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    accelerator = make_accelerator(options.device, options.mixed_precision)
    source = options.teacher or options.student
    config, tokenizer = load_config(source, students=True), load_tokenizer(source)
    rows = load_rows(options, tokenizer)
    check_sizes(options, config, source, rows, tokenizer)
    accelerator.wait_for_everyone()  # until all processes have seen the folder as it was
    _make_folder(options.out, recorded, accelerator)
    console = Console(
        highlight=False, markup=False, soft_wrap=True, quiet=not accelerator.is_main_process, stderr=options.json
    )
    with Progress(console, options.quiet) as progress:
        chain = Chain(options, settings, rows, tokenizer, accelerator, progress)
        student = chain.train()
        loads: list[Load] = []
        if rows.dev is not None:
            loads = expert_load(student, rows.dev_batches(tokenizer.pad_token_id), accelerator=accelerator)
    if accelerator.is_main_process:
        report = write_report(options.out, recorded, settings, rows, accelerator, chain.measured, loads)
        if options.json:
            print(json.dumps(report, indent=2))
        else:
            print_report(console, options.out, rows, chain.measured, loads)
    return DONE


@dataclass(frozen=True)
class Chain:
    """The teacher, the assistants and the student, trained in this order.

    `measured` is filled during training: the measurements of each model by its name.
    """

    options: Any
    settings: dict[str, Any]
    rows: Rows
    tokenizer: Any
    accelerator: Accelerator
    progress: Progress
    measured: Measurements = field(default_factory=dict)

    def train(self) -> PreTrainedModel:
        """Train all models that an interrupted run has not finished; returns the student."""
        options, teacher = self.options, None
        if options.teacher is not None:
            teacher = self._teacher()
            self._remove_state(options.out / "teacher")
            self._measure("teacher", teacher)
        for number, source in enumerate(options.assistant, start=1):
            teacher = self._learner(f"assistant {number}", source, teacher, options.out / f"assistant-{number}")
        return self._learner("student", options.student, teacher, options.out)

    def _learner(self, name: str, source: str, teacher: PreTrainedModel | None, folder: Path) -> PreTrainedModel:
        """Train an assistant or the student and evaluate it before and after; returns it in evaluation mode."""
        rows, tokenizer = self.rows, self.tokenizer
        torch.manual_seed(self.options.seed)  # of a new head
        if teacher is None:
            model = load_model(source, rows.labels, rows.kind)
        else:
            model = load_student(source, teacher, tokenizer, rows.labels, rows.kind)
        check_sizes(self.options, model.config, source, rows, tokenizer)
        self._measure(f"{name}, before", model)
        if (folder / CONFIG_FILE).exists():  # the run is resumed, and this model was finished
            model = load_model(str(folder), rows.labels, rows.kind)
        else:
            self._distil(name, model, teacher, folder)
            if self.accelerator.is_main_process:
                save(model.base_model if rows.headless else model, tokenizer, folder)
        self.accelerator.wait_for_everyone()
        self._remove_state(folder)
        self._measure(name, model)
        return model.eval()

    def _distil(self, name: str, model: PreTrainedModel, teacher: PreTrainedModel | None, folder: Path) -> None:
        """Train the model in place."""
        options = self.options
        with self._reported(name, f"{name}: {options.objective}", options.steps) as after_step:
            try:
                distil(
                    model,
                    teacher,
                    self.rows.train,
                    options.objective,
                    self.settings,
                    self.recipe,
                    accelerator=self.accelerator,
                    tokenizer=self.tokenizer,
                    seed=options.seed,
                    after_step=after_step,
                    state_folder=folder / STATE,
                )
            except ValueError as error:
                raise UserError(f"--objective {options.objective}: {error}") from None

    def _teacher(self) -> PreTrainedModel:
        """The teacher, fine-tuned first if the options ask for it; a resumed run loads a teacher that is already
        fine-tuned.
        """
        options, rows = self.options, self.rows
        if not options.finetune_teacher:
            torch.manual_seed(options.seed)  # of a new head
            return load_model(options.teacher, rows.labels, rows.kind, new_head=rows.headless)
        folder = options.out / "teacher"
        if (folder / CONFIG_FILE).exists():
            return load_model(str(folder), rows.labels, rows.kind, new_head=False)
        recipe = replace(self.recipe, steps=options.finetune_teacher)
        pad_id = self.tokenizer.pad_token_id
        batches = training_batches(rows.train, recipe.batch_size, recipe.steps, options.seed, pad_id)
        with self._reported("teacher", "teacher: fine-tuning", recipe.steps) as after_step:
            try:
                teacher = finetune(
                    options.teacher,
                    rows.labels,
                    masked(batches, self.tokenizer, options.seed) if rows.kind == MASKED_LM else batches,
                    recipe,
                    accelerator=self.accelerator,
                    kind=rows.kind,
                    seed=options.seed,
                    after_step=after_step,
                    checkpoint=Checkpoint(folder / STATE / "finetuning.pt"),
                )
            except ValueError as error:
                raise UserError(f"--finetune-teacher: {error}") from None
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            save(teacher, self.tokenizer, folder)
        return teacher

    @property
    def recipe(self) -> Recipe:
        """The recipe of the distillations; a fine-tuning of the teacher differs in its number of steps."""
        return Recipe(
            steps=self.options.steps,
            batch_size=self.options.batch_size,
            learning_rate=self.options.learning_rate,
            warmup=self.options.warmup,
            weight_decay=self.options.weight_decay,
            freeze_embeddings=self.options.freeze_embeddings,
        )

    @contextmanager
    def _reported(self, name: str, what: str, steps: int) -> Iterator[Callable[[int, float], None]]:
        """The callback for the steps of a training, which shows the progress and logs the loss."""
        with losses(self.options.tensorboard, name, self.accelerator) as log_loss:

            def after_step(step: int, loss: float) -> None:
                self.progress.update(what, step / max(1, steps))
                log_loss(step, loss)

            try:
                yield after_step
            except Diverged as error:
                raise UserError(f"{name}: {error}; a lower --learning-rate may help") from None

    def _measure(self, name: str, model: PreTrainedModel) -> None:
        if self.rows.dev is not None:
            self.progress.update(f"{name}: measuring", None)
        self.measured[name] = measure(model, self.rows, self.accelerator, self.tokenizer.pad_token_id)

    def _remove_state(self, folder: Path) -> None:
        if self.accelerator.is_main_process:
            shutil.rmtree(folder / STATE, ignore_errors=True)


def _make_folder(out: Path, recorded: dict[str, Any], accelerator: Accelerator) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        if accelerator.is_main_process:
            write_text(out / OPTIONS_FILE, json.dumps(recorded, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror or error}") from None


def save(model: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    """Save a model in a folder that may have other files. The configuration is written last: if it exists, the model is
    complete.
    """
    draft = folder / ".unfinished"
    shutil.rmtree(draft, ignore_errors=True)
    save_pretrained(draft, model, tokenizer)
    for file in sorted(draft.iterdir(), key=lambda file: file.name == CONFIG_FILE):
        os.replace(file, folder / file.name)
    draft.rmdir()
