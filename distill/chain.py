"""What `python -m distill` does: from a teacher over assistants to the student, each saved and measured."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel
from transformers.utils import logging

from distill.data import Encoded, encode, training_batches
from distill.distil import Settings, distil
from distill.evaluation import evaluate, expert_load, split_batches
from distill.files import write_text
from distill.kinds import CLASSIFICATION, MASKED_LM, REGRESSION
from distill.loop import Diverged, make_accelerator
from distill.metrics import Score
from distill.progress import Progress, losses
from distill.recipe import Recipe
from distill.student import load_student
from distill.tables import TableError, table_task
from distill.tasks import AnySplit, Task, TaskError, joined, load_task
from distill.teacher import TeacherError, finetune, load_model, load_tokenizer
from distill.texts import read_text

METRICS = "metrics.json"
OPTIONS = "options.json"
STATE = "state"


class ChainError(ValueError):
    """These models, rows and settings do not go together."""


MISTAKES = (ChainError, TaskError, TableError, TeacherError, Diverged)


@dataclass(frozen=True)
class Rows:
    """What is learned and measured on; text has neither a task nor dev rows."""

    kind: str
    train: Encoded
    task: Task | None = None
    split: AnySplit | None = None
    dev: Encoded | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; text has a head of two that nothing learns from."""
        return ("0", "1") if self.task is None else self.task.labels


def load_rows(options: Any, tokenizer: Any) -> Rows:
    """The rows that the options name, encoded.

    Raises:
        TaskError, TableError: there are none.
        ChainError: they have no room in `max_length` tokens.
    """

    def encoded(split: AnySplit | list[str]) -> Encoded:
        try:
            return encode(tokenizer, split, options.max_length)
        except ValueError as error:
            raise ChainError(f"--max-length: {error}") from None

    if options.corpus is not None:
        kind = MASKED_LM if options.masked_lm else CLASSIFICATION
        return Rows(kind, encoded(read_text(options.corpus)))
    if options.train is not None:
        kind = REGRESSION if options.regression else CLASSIFICATION
        data = table_task(
            options.train, options.dev, text=options.text, label=options.label, pair=options.pair, kind=kind
        )
    else:
        data = load_task(options.task, options.data)
    train = encoded(joined(data.train, data.search))
    return Rows(data.task.kind, train, data.task, data.dev, encoded(data.dev))


def run(options: Any, settings: Settings, recorded: dict[str, Any]) -> int:
    """Everything; returns 0.

    Args:
        settings: of the objective.
        recorded: the options that decide what is computed, to be kept beside the results.

    Raises:
        any of MISTAKES.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    accelerator = make_accelerator(options.device)
    tokenizer = load_tokenizer(options.teacher or options.student)
    rows = load_rows(options, tokenizer)
    recipe = Recipe(
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        warmup=options.warmup,
        weight_decay=options.weight_decay,
        freeze_embeddings=options.freeze_embeddings,
    )
    main = accelerator.is_main_process
    options.out.mkdir(parents=True, exist_ok=True)
    if main:
        write_text(options.out / OPTIONS, json.dumps(recorded, indent=2) + "\n")
    console = Console(highlight=False, soft_wrap=True, quiet=not main)
    measured: dict[str, dict[str, Any]] = {}
    with Progress(console) as progress:

        def note(name: str, model: PreTrainedModel) -> None:
            progress.prepare(f"{name}: measuring", None)
            measured[name] = facts(model, rows, accelerator, tokenizer.pad_token_id)

        teacher = None
        if options.teacher is not None:
            teacher = the_teacher(options, rows, recipe, tokenizer, accelerator, progress)
            note("teacher", teacher)
        chain = [*options.assistant, options.student]
        for number, spec in enumerate(chain, 1):
            name = "student" if number == len(chain) else f"assistant {number}"
            folder = options.out if name == "student" else options.out / f"assistant-{number}"
            if (folder / "config.json").exists():  # of a run that is resumed
                student = load_model(str(folder), rows.labels, rows.kind)
            else:
                torch.manual_seed(options.seed)
                student = the_student(spec, teacher, tokenizer, rows)
                note(f"{name}, before", student)
                with losses(options.tensorboard, name, accelerator) as write:

                    def after_step(step: int, loss: float, what: str = f"{name}: {options.objective}") -> None:
                        progress.prepare(what, step / max(1, options.steps))
                        write(step, loss)

                    try:
                        distil(
                            student,
                            teacher,
                            rows.train,
                            options.objective,
                            settings,
                            recipe,
                            accelerator=accelerator,
                            tokenizer=tokenizer,
                            seed=options.seed,
                            after_step=after_step,
                            keep=folder / STATE,
                        )
                    except ValueError as error:
                        raise ChainError(f"--objective {options.objective}: {error}") from None
                if main:
                    student.save_pretrained(folder)
                    tokenizer.save_pretrained(folder)
                    shutil.rmtree(folder / STATE, ignore_errors=True)
                accelerator.wait_for_everyone()
            note(name, student)
            teacher = student.eval()
        loads = expert_load(student, dev_batches(rows, tokenizer), accelerator=accelerator) if rows.dev else []
    if main:
        report = {
            "options": recorded,
            "settings": dict(settings),
            "dev_rows": None if rows.split is None else len(rows.split),
            "processes": accelerator.num_processes,
            "precision": accelerator.mixed_precision,
            "torch": torch.__version__,
            "models": measured,
            "expert_load": [load.to_json() for load in loads],
        }
        write_text(options.out / METRICS, json.dumps(report, indent=2) + "\n")
        console.print(table(measured, rows))
        for load in loads:
            console.print(f"experts of {load}")
        console.print(f"wrote {options.out}")
    return 0


def the_teacher(
    options: Any, rows: Rows, recipe: Recipe, tokenizer: Any, accelerator: Accelerator, progress: Progress
) -> PreTrainedModel:
    """The teacher, fine-tuned on the rows where that is asked for; kept for a run that is resumed."""
    if not options.finetune_teacher:
        headless = rows.task is None and rows.kind != MASKED_LM  # text that is learned without its words
        return load_model(options.teacher, rows.labels, rows.kind, new_head=headless)
    folder, steps = options.out / "teacher", options.finetune_teacher
    if (folder / "config.json").exists():
        return load_model(str(folder), rows.labels, rows.kind, new_head=False)
    batches = list(training_batches(rows.train, recipe.batch_size, steps, options.seed, tokenizer.pad_token_id))
    teacher = finetune(
        options.teacher,
        rows.labels,
        batches,
        Recipe(
            steps=steps,
            batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            freeze_embeddings=recipe.freeze_embeddings,
        ),
        accelerator=accelerator,
        kind=rows.kind,
        seed=options.seed,
        after_step=lambda step, _loss: progress.prepare("teacher: fine-tuning", step / steps),
    )
    if accelerator.is_main_process:
        teacher.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    accelerator.wait_for_everyone()
    return teacher


def the_student(spec: str, teacher: PreTrainedModel | None, tokenizer: Any, rows: Rows) -> PreTrainedModel:
    if teacher is None:
        return load_model(spec, rows.labels, rows.kind)
    return load_student(spec, teacher, tokenizer, rows.labels, rows.kind)


def dev_batches(rows: Rows, tokenizer: Any) -> Iterator[dict[str, torch.Tensor]]:
    """The dev rows, padded."""
    assert rows.dev is not None
    return (batch for _, batch in split_batches(rows.dev, tokenizer.pad_token_id))


def facts(model: PreTrainedModel, rows: Rows, accelerator: Accelerator, pad_id: int) -> dict[str, Any]:
    """Parameters and, of a task, all metrics on the whole dev split."""
    result: dict[str, Any] = {"params": sum(parameter.numel() for parameter in model.parameters())}
    if rows.task is not None and rows.dev is not None and rows.split is not None:
        scores = evaluate(model, rows.dev, rows.split, rows.task, accelerator=accelerator, pad_id=pad_id)
        result |= {name: {"value": s.value, "standard_error": s.standard_error} for name, s in scores.items()}
    return result


def table(measured: dict[str, dict[str, Any]], rows: Rows) -> Table:
    """The models' parameters and scores."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    metrics = () if rows.task is None else rows.task.metrics
    for column in ("model", "parameters", *metrics):
        result.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for name, row in measured.items():
        scores = [str(Score(row[metric]["value"], row[metric]["standard_error"])) for metric in metrics]
        result.add_row(name, f"{row['params'] / 1e6:.2f} M", *scores)
    return result
