"""Prepares the data of a task and the teacher that is fine-tuned on it."""

from pathlib import Path

import torch

from distill.objectives import hard_labels
from distill.training.checkpoint import Checkpoint
from distill.training.evaluation import EvalSet
from distill.training.kept_teacher import check_kept
from distill.training.loop import train
from distill.training.teacher import load_model
from foundation.files import save_pretrained
from nas.preparation import data
from nas.preparation.context import PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.entries import TRAINING, Entry, Work, create, teacher_of
from nas.preparation.phases import portion, refusing_divergence


def data_entry(context: PreparationContext) -> Entry:
    """The encoded splits of the context's task. Making it raises ConfigError if they cannot be read or encoded."""

    def make(folder: Path, state: Path) -> None:
        context.on_progress(f"data of the task {context.config.task}", None)
        data.write(context.config, context.tokenizer, context.corpus, folder, context.accelerator)

    return Entry(f"encoded rows of {context.config.task}", context.data, make)


def teacher_entry(context: PreparationContext) -> Entry:
    """The teacher that is fine-tuned on the task. Making it raises ConfigError if the fine-tuning diverges."""
    config = context.config

    def make(folder: Path, state: Path) -> None:
        folders = TaskFolders(context.data, folder)
        task, rows = folders.task, portion(folders.rows("train"), config.finetune.fraction, config.seed)
        recipe = config.finetune.build(len(rows))
        search = EvalSet(task, folders.split("search"), folders.rows("search"), context.tokenizer.pad_token_id)
        with refusing_divergence("finetune"):
            torch.manual_seed(config.seed)  # for a new head
            model = load_model(config.teacher, task.labels, task.task_type, new_head=recipe.steps > 0)
            train(
                model,
                context.recipe_batches(rows, recipe, config.seed),
                hard_labels(),
                recipe,
                accelerator=context.accelerator,
                seed=config.seed,
                after_step=lambda step, loss: context.on_progress("teacher: fine-tuning", step / recipe.steps),
                checkpoint=Checkpoint(state / "fine-tuning.pt"),
                score=lambda: search.score(model, context.accelerator).value,  # for early stopping
            )
        if config.finetune.steps == 0:
            check_kept(config.teacher, model, search, context.accelerator)
        save_pretrained(folder, model, context.tokenizer)

    work = Work("teacher: fine-tuning", teacher_of(config), config.finetune, TRAINING)
    return Entry("fine-tuned teacher", context.teacher, make, (work,), is_training=True)


def prepare_task(context: PreparationContext) -> TaskFolders:
    """Prepare the encoded examples of the context's task and the fine-tuned teacher.

    Raises:
        ConfigError: the examples cannot be read or encoded, or the fine-tuning diverged.
    """
    create(context, (data_entry(context), teacher_entry(context)))
    return TaskFolders(context.data, context.teacher)


def prepare_data(context: PreparationContext) -> Path:
    """Prepare the task's encoded splits; returns their folder.

    Raises:
        ConfigError: the examples cannot be read or encoded.
    """
    data_entry(context).create(context)
    return context.data


def dev_set(context: PreparationContext) -> EvalSet:
    """The dev split of the context's task, read and encoded, or found in the cache.

    Raises:
        ConfigError: the examples cannot be read or encoded.
    """
    folders = TaskFolders(prepare_data(context), context.teacher)
    return EvalSet(folders.task, folders.split("dev"), folders.rows("dev"), context.tokenizer.pad_token_id)
