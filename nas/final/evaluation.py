"""Evaluates checkpoints on tasks without training, predicts test splits, and makes the table of the tasks' scores."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate import Accelerator
from transformers import PreTrainedModel

from distill.cli import DONE
from distill.table import Column, Table, with_error
from distill.tasks.classes import matched, with_classes_of
from distill.tasks.corpora import embedded_corpus
from distill.tasks.readers.glue import trained_on
from distill.tasks.readers.glue_submission import read_test, write_submission
from distill.tasks.splits import AnySplit
from distill.tasks.task import Task, TaskData, TaskError
from distill.training.evaluation import EvalSet
from distill.training.loop import make_accelerator
from distill.training.measure import scores
from distill.training.progress import Progress, silence_transformers, terminal
from distill.training.teacher import (
    check_positions,
    check_vocabulary,
    load_config,
    load_model,
    load_tokenizer,
    outputs_of,
)
from nas.config.schema import ConfigError, StudyConfig, reporting
from nas.preparation.data import encoded, read

# By task: the names of its metrics ("metrics"), and by model its scores ("models"), as metrics.json has them.
Tasks = Mapping[str, Mapping[str, Any]]
# The name of the checkpoint in the table.
SCORE = "score on the dev split"


def evaluate_checkpoint(
    config: StudyConfig,
    checkpoint: Path,
    tasks: Sequence[str],
    predictions: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Score a checkpoint on the whole dev split of every task, and predict the test splits; returns the exit status.

    Args:
        checkpoint: a folder with a trained model, or with the folders that `train_final.py --tasks` makes, one for each
            task.
        predictions: the folder for the predictions of test splits; None: none are made.

    Raises:
        UserError: the checkpoint or the rows cannot be read, or do not fit together.
    """
    silence_transformers()
    console = terminal(stderr=as_json)
    accelerator = make_accelerator(device, config.mixed_precision)
    corpus, measured, written = cache(embedded_corpus), dict[str, dict[str, Any]](), list[Path]()
    with Progress(console, quiet) as progress:
        for name in tasks:
            progress.update(f"{name}: evaluating", None)
            of_task = config.model_copy(update={"tasks": (name,)})
            data = read(of_task, corpus)
            folder = str(folder_of(checkpoint, name))
            model, tokenizer, dev = model_and_dev_set(of_task, data, folder, accelerator)
            task, own_labels = dev.task, data.task.labels
            own = scores(task, {SCORE: dev.contributions(model, accelerator)})
            measured[name] = {"metrics": task.metrics, "models": own}
            if predictions is not None:
                progress.update(f"{name}: predicting the test split", None)
                with reporting("", TaskError):
                    indices, split = read_test(name, None if config.data is None else Path(config.data))
                test = encoded_split(of_task, task, split, tokenizer, model, folder, accelerator)
                predicted = test.predictions(model, accelerator)
                places = matched(own_labels, task.labels)
                if places and task.labels != own_labels:
                    predicted = [places.index(place) for place in predicted]
                written.append(write_submission(name, indices, predicted, predictions))
    if as_json:
        by_task = {name: row["models"][SCORE] for name, row in measured.items()}
        print(json.dumps({"tasks": by_task, "mean": means(measured)[SCORE]}, indent=2))
    else:
        table_of_tasks(measured).print(console)
        for path in written:
            console.print(f"wrote {path}")
    return DONE


def model_and_dev_set(
    config: StudyConfig, data: TaskData[Any], folder: str, accelerator: Accelerator
) -> tuple[PreTrainedModel, Any, EvalSet]:
    """The model in a folder, its tokenizer, and the dev split of a task with the model's classes.

    Args:
        data: the rows of the configuration's task.

    Raises:
        UserError: the model cannot be read, has no trained head for the task, or the rows do not fit it.
    """
    data = with_classes_of(data, outputs_of(load_config(folder, students=True)), all_of_them=True)
    model = load_model(folder, data.task.labels, data.task.task_type, new_head=False)
    tokenizer = load_tokenizer(folder, data.task.task_type)
    check_vocabulary(folder, model.config, tokenizer)
    return model, tokenizer, encoded_split(config, data.task, data.dev, tokenizer, model, folder, accelerator)


def encoded_split(
    config: StudyConfig,
    task: Task,
    split: AnySplit,
    tokenizer: Any,
    model: PreTrainedModel,
    folder: str,
    accelerator: Accelerator,
) -> EvalSet:
    """A split of the configuration's task, encoded for the model in this folder.

    Raises:
        UserError: they are too few, or the model has fewer positions.
    """
    labeled, rows = encoded(config, task, split, tokenizer, accelerator)
    longest = int(rows.lengths.max(initial=0))
    check_positions(folder, model.config, longest, f"{task.name}: max_length {config.row_length}")
    return EvalSet(task, labeled, rows, tokenizer.pad_token_id)


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


def means(tasks: Tasks) -> dict[str, float]:
    """Each model's mean over the tasks of their first metrics, in which all tasks have the same weight."""
    names = dict.fromkeys(name for row in tasks.values() for name in row["models"])
    return {name: fmean(row["models"][name][row["metrics"][0]]["value"] for row in tasks.values()) for name in names}


def table_of_tasks(tasks: Tasks) -> Table:
    """A row for each metric of each task, a column for each model, and at the end the means."""
    by_model = means(tasks)
    columns = (
        *(Column(name, is_text=True) for name in ("task", "metric")),
        *(Column(name, with_error) for name in by_model),
    )
    rows: list[tuple[Any, ...]] = []
    for task, row in tasks.items():
        for number, metric in enumerate(row["metrics"]):
            own = [row["models"][name][metric] for name in by_model]
            cells = [(score["value"], score["standard_error"]) for score in own]
            rows.append(("" if number else task, metric, *cells))
    if len(tasks) > 1:
        rows.append(("mean", None, *((mean, None) for mean in by_model.values())))
    return Table(columns, rows)
