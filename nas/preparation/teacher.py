"""Prepares the data of a task and the teacher that is fine-tuned on it."""

from pathlib import Path

from transformers import PreTrainedModel

from distill.files import save_pretrained
from distill.training.checkpoint import Checkpoint
from distill.training.evaluation import evaluate
from distill.training.teacher import finetune
from nas.preparation import data
from nas.preparation.context import PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.phases import portion, refusing_divergence


def prepare_task(context: PreparationContext) -> TaskFolders:
    """Prepare the encoded rows of the context's task and the fine-tuned teacher.

    Raises:
        ConfigError: the rows cannot be read or encoded, or the fine-tuning diverged.
    """
    folder = prepare_data(context)
    folders = TaskFolders(folder, context.cache / "teachers" / context.teacher_key)
    context.train_once(folders.teacher, lambda path, state: _make_teacher(context, folders, path, state))
    return folders


def prepare_data(context: PreparationContext) -> Path:
    """Prepare the task's encoded splits; returns their folder.

    Raises:
        ConfigError: the rows cannot be read or encoded.
    """

    def make(folder: Path) -> None:
        context.on_progress(f"data of the task {context.config.task}", None)
        data.write(context.config, context.tokenizer, context.corpus, folder)

    return context.create_once(context.cache / "data" / context.data_key, make)


def _make_teacher(context: PreparationContext, folders: TaskFolders, folder: Path, state: Path) -> None:
    """Fine-tune the teacher on the task and save it with its tokenizer."""
    config, task = context.config, folders.task
    rows = portion(folders.rows("train"), config.finetune.share, config.seed)
    recipe = config.finetune.build(len(rows))

    def score(model: PreTrainedModel) -> float:
        """The task's first metric on the search split, for early stopping."""
        scores = evaluate(
            model,
            folders.rows("search"),
            folders.split("search"),
            task,
            accelerator=context.accelerator,
            pad_id=context.tokenizer.pad_token_id,
        )
        return scores[task.metrics[0]].value

    with refusing_divergence("finetune"):
        model = finetune(
            config.teacher,
            task.labels,
            context.recipe_batches(rows, recipe, config.seed),
            recipe,
            accelerator=context.accelerator,
            score=score,
            kind=task.kind,
            seed=config.seed,
            after_step=lambda step, loss: context.on_progress("teacher: fine-tuning", step / recipe.steps),
            checkpoint=Checkpoint(state / "fine-tuning.pt"),
        )
    save_pretrained(folder, model, context.tokenizer)
