"""What `python -m distill` does: from a teacher over assistants to the student, each saved and measured."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel
from transformers.utils import logging

from distill.files import write_text
from distill.objectives import Settings
from distill.tasks.encoding import Encoded, encode, training_batches
from distill.tasks.metrics import Score
from distill.tasks.readers import load_task
from distill.tasks.readers.tables import table_task
from distill.tasks.readers.texts import read_text
from distill.tasks.task import AnySplit, Task, joined
from distill.tasks.types import CLASSIFICATION, MASKED_LM, REGRESSION
from distill.training.checkpoint import Checkpoint
from distill.training.distillation import distil, masked
from distill.training.evaluation import evaluate, expert_load, split_batches
from distill.training.loop import Diverged, make_accelerator
from distill.training.progress import Progress, losses
from distill.training.recipe import Recipe
from distill.training.students import load_student
from distill.training.teacher import NAS_BERT, finetune, load_config, load_model, load_tokenizer
from search_spaces.errors import UserError

METRICS = "metrics.json"
OPTIONS = "options.json"
CONFIG = "config.json"
STATE = "state"


class ChainError(UserError, ValueError):
    """These models, rows and settings do not go together."""


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

    @property
    def headless(self) -> bool:
        """Whether they are text of which no words are learned."""
        return self.task is None and self.kind != MASKED_LM


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
        UserError: these models, rows and settings do not go together, or the training diverged.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    accelerator = make_accelerator(options.device)
    first = options.teacher or options.student
    config = load_config(first, ("bert", NAS_BERT))
    tokenizer = load_tokenizer(first)
    rows = load_rows(options, tokenizer)
    check_room(options, config, first, rows, tokenizer)
    recipe = Recipe(
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        warmup=options.warmup,
        weight_decay=options.weight_decay,
        freeze_embeddings=options.freeze_embeddings,
    )
    main = accelerator.is_main_process
    accelerator.wait_for_everyone()  # all processes have seen the folder as it was
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if main:
            write_text(options.out / OPTIONS, json.dumps(recorded, indent=2) + "\n")
    except OSError as error:
        raise ChainError(f"--out {options.out}: {error.strerror}") from None
    console = Console(highlight=False, markup=False, soft_wrap=True, quiet=not main)
    measured: dict[str, dict[str, Any]] = {}
    with Progress(console) as progress:

        def note(name: str, model: PreTrainedModel) -> None:
            if rows.dev is not None:
                progress.prepare(f"{name}: measuring", None)
            measured[name] = facts(model, rows, accelerator, tokenizer.pad_token_id)

        teacher = None
        if options.teacher is not None:
            teacher = the_teacher(options, rows, recipe, tokenizer, accelerator, progress)
            if main:
                shutil.rmtree(options.out / "teacher" / STATE, ignore_errors=True)
            note("teacher", teacher)
        chain = [*options.assistant, options.student]
        for number, spec in enumerate(chain, 1):
            name = "student" if number == len(chain) else f"assistant {number}"
            folder = options.out if name == "student" else options.out / f"assistant-{number}"
            torch.manual_seed(options.seed)
            student = the_student(spec, teacher, tokenizer, rows)
            check_room(options, student.config, spec, rows, tokenizer)
            note(f"{name}, before", student)
            if (folder / CONFIG).exists():  # of a run that is resumed
                student = load_model(str(folder), rows.labels, rows.kind)
            else:
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
                    except Diverged as error:
                        raise ChainError(f"{name}: {error}; a lower --learning-rate may help") from None
                    except ValueError as error:
                        raise ChainError(f"--objective {options.objective}: {error}") from None
                if main:
                    save(student.base_model if rows.headless else student, tokenizer, folder)
            accelerator.wait_for_everyone()
            if main:
                shutil.rmtree(folder / STATE, ignore_errors=True)
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
        torch.manual_seed(options.seed)  # of a new head
        return load_model(options.teacher, rows.labels, rows.kind, new_head=rows.headless)
    folder, steps = options.out / "teacher", options.finetune_teacher
    if (folder / CONFIG).exists():
        return load_model(str(folder), rows.labels, rows.kind, new_head=False)
    batches = training_batches(rows.train, recipe.batch_size, steps, options.seed, tokenizer.pad_token_id)
    with losses(options.tensorboard, "teacher", accelerator) as write:

        def after_step(step: int, loss: float) -> None:
            progress.prepare("teacher: fine-tuning", step / steps)
            write(step, loss)

        try:
            teacher = finetune(
                options.teacher,
                rows.labels,
                masked(batches, tokenizer, options.seed) if rows.kind == MASKED_LM else batches,
                replace(recipe, steps=steps),
                accelerator=accelerator,
                kind=rows.kind,
                seed=options.seed,
                after_step=after_step,
                checkpoint=Checkpoint(folder / STATE / "finetuning.pt"),
            )
        except Diverged as error:
            raise ChainError(f"teacher: {error}; a lower --learning-rate may help") from None
        except ValueError as error:
            raise ChainError(f"--finetune-teacher: {error}") from None
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        save(teacher, tokenizer, folder)
    return teacher


def check_room(options: Any, config: Any, name: str, rows: Rows, tokenizer: Any) -> None:
    """Raises ChainError where a model has fewer words than its tokenizer, or fewer positions than a row has tokens."""
    if len(tokenizer) > config.vocab_size:
        raise ChainError(
            f"the model {name!r} has {config.vocab_size:,} words, its tokenizer {len(tokenizer):,}: they do not belong "
            "together"
        )
    longest = max(int(part.lengths.max()) for part in (rows.train, rows.dev) if part is not None)
    if longest > config.max_position_embeddings:
        raise ChainError(
            f"--max-length {options.max_length}: rows have up to {longest} tokens; the model {name!r} takes at most "
            f"{config.max_position_embeddings}"
        )


def save(model: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    """Put a model into a folder that may have other files; its configuration comes last and shows that all is there."""
    draft = folder / ".unfinished"
    shutil.rmtree(draft, ignore_errors=True)
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    for file in sorted(draft.iterdir(), key=lambda file: file.name == CONFIG):
        os.replace(file, folder / file.name)
    draft.rmdir()


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
    kept = model.base_model if rows.headless else model
    result: dict[str, Any] = {"params": sum(parameter.numel() for parameter in kept.parameters())}
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
