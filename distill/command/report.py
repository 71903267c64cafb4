"""The measurements and the report of `python -m distill`: parameters, scores and the load of experts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from distill.command.rows import Rows
from distill.files import write_text
from distill.tasks.metrics import Score
from distill.training.evaluation import Load, evaluate

METRICS_FILE = "metrics.json"
# For each model its number of parameters and, for each metric, value and standard error.
Measurements = dict[str, dict[str, Any]]


def measure(model: PreTrainedModel, rows: Rows, accelerator: Accelerator, pad_id: int) -> dict[str, Any]:
    """The number of parameters and, if there is a task, all metrics on the whole dev split."""
    saved = model.base_model if rows.headless else model
    result: dict[str, Any] = {"params": sum(parameter.numel() for parameter in saved.parameters())}
    if rows.task is not None and rows.dev is not None and rows.split is not None:
        scores = evaluate(model, rows.dev, rows.split, rows.task, accelerator=accelerator, pad_id=pad_id)
        result |= {
            metric: {"value": score.value, "standard_error": score.standard_error} for metric, score in scores.items()
        }
    return result


def write_report(
    out: Path,
    recorded: dict[str, Any],
    settings: dict[str, Any],
    rows: Rows,
    accelerator: Accelerator,
    models: Measurements,
    loads: Sequence[Load],
) -> dict[str, Any]:
    """Write all measurements, options and settings of the run to metrics.json in the folder `out`; returns them."""
    report = {
        "options": recorded,
        "settings": settings,
        "dev_rows": None if rows.split is None else len(rows.split),
        "processes": accelerator.num_processes,
        "precision": accelerator.mixed_precision,
        "torch": torch.__version__,
        "models": models,
        "expert_load": [load.to_json() for load in loads],
    }
    write_text(out / METRICS_FILE, json.dumps(report, indent=2) + "\n")
    return report


def print_report(console: Console, out: Path, rows: Rows, models: Measurements, loads: Sequence[Load]) -> None:
    """Print a table of the models' parameters and scores, and the load of the experts."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    metrics = () if rows.task is None else rows.task.metrics
    for column in ("model", "parameters", *metrics):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for name, row in models.items():
        scores = [str(Score(row[metric]["value"], row[metric]["standard_error"])) for metric in metrics]
        table.add_row(name, f"{row['params'] / 1e6:.2f} M", *scores)
    console.print(table)
    for load in loads:
        console.print(f"experts of {load}")
    console.print(f"wrote {out}")
