"""Evaluates checkpoints without training, and predicts test splits (`train_final.py --evaluate`)."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from distill.cli import DONE
from distill.tasks.corpora import embedded_corpus
from distill.tasks.metrics import Score
from distill.tasks.readers.glue import trained_on
from distill.tasks.readers.glue_submission import read_test, write_submission
from distill.tasks.splits import AnySplit
from distill.tasks.task import Task, TaskData, TaskError, scores_of
from distill.tasks.types import encode
from distill.training.evaluation import batch_logits, evaluate_rows, split_batches
from distill.training.loop import make_accelerator
from distill.training.progress import Progress
from distill.training.teacher import check_positions, check_vocabulary, load_model, load_tokenizer
from nas.config.schema import ConfigError, StudyConfig
from nas.preparation.data import read


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate.

    Attributes:
        checkpoint: a folder with a trained model, or with the folders that `train_final.py --tasks` makes, one for each
            task.
        predictions: the folder for the predictions of test splits; None: none are made.
    """

    config: StudyConfig
    checkpoint: Path
    tasks: Sequence[str]
    predictions: Path | None = None
    device: str = "auto"
    quiet: bool = False
    as_json: bool = False


def run_evaluation(evaluation: Evaluation) -> int:
    """Score the checkpoint on the whole dev split of every task, and predict the test splits; returns the exit status.

    Raises:
        UserError: the checkpoint or the rows cannot be read, or do not fit together.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    console = Console(highlight=False, soft_wrap=True, stderr=evaluation.as_json)
    corpus = cache(embedded_corpus)
    scores: dict[str, dict[str, Score]] = {}
    written = []
    with Progress(console, evaluation.quiet) as progress:
        for name in evaluation.tasks:
            progress.update(f"{name}: evaluating", None)
            config = evaluation.config.model_copy(update={"tasks": (name,)})
            data = read(config, corpus)
            model = _model(evaluation.checkpoint, data.task)
            scores[name] = scores_of(data.task, _contributions(evaluation, model, data))
            if evaluation.predictions is not None:
                progress.update(f"{name}: predicting the test split", None)
                written.append(_predict(evaluation, config, model, data.task))
    if evaluation.as_json:
        print(json.dumps(_as_json(scores), indent=2))
    else:
        console.print(_table(scores))
        for path in written:
            console.print(f"wrote {path}")
    return DONE


def dev_contributions(
    config: StudyConfig, name: str, tokenizer: Any, models: dict[str, PreTrainedModel], accelerator: Any
) -> tuple[Task, dict[str, dict[str, Any]]]:
    """A task, and the contributions of the rows of its dev split to its metrics, by model."""
    data = read(config.model_copy(update={"tasks": (name,)}), cache(embedded_corpus))
    rows = _encoded(tokenizer, data.dev, config, data.task)
    pad = tokenizer.pad_token_id
    return data.task, {
        model: evaluate_rows(trained, rows, data.dev, data.task, accelerator=accelerator, pad_id=pad)
        for model, trained in models.items()
    }


def _model(checkpoint: Path, task: Task) -> PreTrainedModel:
    """The checkpoint's model for this task."""
    return load_model(str(folder_of(checkpoint, task.name)), task.labels, task.kind, new_head=False)


def folder_of(checkpoint: Path, task: str) -> Path:
    """The folder of the checkpoint for this task: a subfolder of its name, if there is one.

    Raises:
        ConfigError: there is none, though there are subfolders of other tasks.
    """
    folder = checkpoint / trained_on(task)
    if folder.is_dir():
        return folder
    if not (checkpoint / "config.json").exists():
        raise ConfigError(f"--evaluate {checkpoint}: neither a checkpoint nor a folder with one for the task {task}")
    return checkpoint


def _encoded(tokenizer: Any, split: AnySplit, config: StudyConfig, task: Task) -> Any:
    try:
        return encode(tokenizer, split, config.max_length, kind=task.kind)
    except ValueError as error:
        raise ConfigError(f"max_length: {error}") from None


def _tokenized(evaluation: Evaluation, model: PreTrainedModel, split: AnySplit, task: Task) -> tuple[Any, Any]:
    """The checkpoint's tokenizer, and the rows encoded with it, after a check that both fit the model."""
    folder, config = str(folder_of(evaluation.checkpoint, task.name)), evaluation.config
    tokenizer = load_tokenizer(folder)
    check_vocabulary(folder, model.config, tokenizer)
    rows = _encoded(tokenizer, split, config, task)
    longest = int(rows.lengths.max(initial=0))
    check_positions(folder, model.config, longest, f"{task.name}: max_length {config.max_length}")
    return tokenizer, rows


def _contributions(evaluation: Evaluation, model: PreTrainedModel, data: TaskData[Any]) -> dict[str, Any]:
    tokenizer, rows = _tokenized(evaluation, model, data.dev, data.task)
    accelerator = make_accelerator(evaluation.device, evaluation.config.mixed_precision)
    return evaluate_rows(model, rows, data.dev, data.task, accelerator=accelerator, pad_id=tokenizer.pad_token_id)


def _predict(evaluation: Evaluation, config: StudyConfig, model: PreTrainedModel, task: Task) -> Path:
    """Write the predictions for the task's test split; returns the file."""
    assert evaluation.predictions is not None and task.type.predict is not None
    try:
        indices, split = read_test(task.name, None if config.data is None else Path(config.data))
    except TaskError as error:
        raise ConfigError(str(error)) from None
    tokenizer, rows = _tokenized(evaluation, model, split, task)
    batches = split_batches(rows, tokenizer.pad_token_id)
    accelerator = make_accelerator(evaluation.device, evaluation.config.mixed_precision)
    parts = batch_logits(model, (batch for _, batch in batches), accelerator=accelerator)
    numbers = [int(number) for chosen, _ in batches for number in chosen]
    logits = dict(zip(numbers, (row.numpy() for part in parts for row in part), strict=True))
    ordered = [logits[number] for number in range(len(split))]
    predictions = task.type.predict(rows, ordered, split, task.labels)
    return write_submission(task.name, indices, predictions, evaluation.predictions)


def _as_json(scores: dict[str, dict[str, Score]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tasks": {name: {metric: asdict(score) for metric, score in row.items()} for name, row in scores.items()}
    }
    return found | {"mean": fmean(_first(row) for row in scores.values())}


def _first(row: dict[str, Score]) -> float:
    return next(iter(row.values())).value


def _table(scores: dict[str, dict[str, Score]]) -> Table:
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    result.add_column("task")
    result.add_column("score on the dev split", justify="right", no_wrap=True)
    result.add_column("metric")
    result.add_column("other metrics")
    for name, row in scores.items():
        (metric, score), *others = row.items()
        result.add_row(name, str(score), metric, ", ".join(f"{other} {value}" for other, value in others))
    if len(scores) > 1:
        result.add_row("mean", f"{fmean(_first(row) for row in scores.values()):.4f}", "", "")
    return result
