"""What the commands that train or prune a model report: metrics.json, and its table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError

from distill.cli import DONE
from distill.command.options import recorded
from distill.files import write_text
from distill.tasks.metrics import Score
from distill.training.evaluation import Load
from distill.training.layout import METRICS_FILE
from distill.training.measure import Measurements, environment
from distill.training.progress import Progress
from distill.training.run import Examples, Training, TrainingRun, run_training
from search_spaces.errors import UserError


def train_and_report(
    options: Any, models: Mapping[str, Training], examples: Examples, accelerator: Accelerator, **more: Any
) -> int:
    """Train the models, write metrics.json, with what more is given, and print it; returns the exit status.

    Raises:
        UserError: as `run_training`, or the folder cannot be written.
    """
    quiet = not accelerator.is_main_process
    console = Console(highlight=False, markup=False, soft_wrap=True, quiet=quiet, stderr=options.json)
    given = {"out": options.out, "options": recorded(options), "seed": options.seed}
    run = TrainingRun(models=models, examples=examples, tensorboard=options.tensorboard, **given)
    try:
        with Progress(console, options.quiet) as progress:
            measured = run_training(run, accelerator, progress)
        if not accelerator.is_main_process:
            return DONE
        loads = measured[run.student].get("expert_load", [])
        metrics = report(options, examples, accelerator, measured, **more, expert_load=loads)
        write_metrics(run.out, metrics)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"--out {options.out}: {error.strerror}") from None
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--out {options.out}: {reason}; free some space there and add --resume") from error
    except ValueError as error:
        objective = models[run.student].objective
        raise error if isinstance(error, UserError) else UserError(f"--objective {objective}: {error}") from None
    return show(options, console, metrics)


def report(
    options: Any, examples: Examples, accelerator: Accelerator, models: Measurements, **more: Any
) -> dict[str, Any]:
    """The content of metrics.json: the options, the measurements, and what more is given."""
    eval_set = examples.eval_set
    return {
        "options": recorded(options),
        **more,
        "metrics": () if eval_set is None else eval_set.task.metrics,
        "dev_rows": None if eval_set is None else len(eval_set.split),
        **environment(accelerator),
        "models": models,
    }


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    write_text(folder / METRICS_FILE, json.dumps(metrics, indent=2) + "\n")


def show(options: Any, console: Console, metrics: Mapping[str, Any], *lines: str) -> int:
    """Print the content of metrics.json as JSON or as a table, with further lines below it; returns the exit status."""
    if options.json:
        print(json.dumps(metrics, indent=2))
        return DONE
    console.width = max(console.width, 200)  # otherwise a narrow terminal cuts figures off
    console.print(table(metrics["models"], metrics["metrics"]))
    for line in (*load_lines(metrics["models"]), *lines, f"wrote {options.out}"):
        console.print(line)
    return DONE


def load_lines(models: Measurements) -> list[str]:
    """A line for each router of each model that has experts."""
    return [
        f"{name}: experts of {Load(load['layer'], load['part'], tuple(load['shares']))}"
        for name, row in models.items()
        for load in row.get("expert_load", ())
    ]


def table(models: Measurements, metrics: Sequence[str], reference: str | None = None) -> Table:
    """The measurements as a table with a row for each model and a column for everything that was measured.

    Args:
        metrics: the names of the metrics, of which the first is compared with that of the model named `reference`.
    """
    millions = {"params": "parameters", "params_active": "active", "ffn_params": "in FFNs", "macs": "MACs"}
    columns = {metric: {name: _score(row[metric]) for name, row in models.items()} for metric in metrics}
    if reference is not None:
        columns[f"{metrics[0]} − {reference}'s"] = {
            name: _difference(row[metrics[0]].get("difference")) for name, row in models.items()
        }
    for key, column in millions.items():
        digits = 0 if key == "macs" else 2
        columns[column] = {name: f"{row[key] / 1e6:.{digits}f} M" for name, row in models.items() if key in row}
    if columns["active"] == {name: columns["parameters"][name] for name in columns["active"]}:
        del columns["active"]  # no model has experts
    if reference is not None:
        times = {name: row["latency_ms"] for name, row in models.items()}
        columns["latency"] = {name: f"{time:.1f} ms" for name, time in times.items()}
        columns["speed-up"] = {name: f"{times[reference] / time:.2f}×" for name, time in times.items()}
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    result.add_column("model", no_wrap=True)
    shown = {column: cells for column, cells in columns.items() if cells}
    for column in shown:
        result.add_column(column, justify="right", no_wrap=True)
    for name in models:
        result.add_row(name, *(cells.get(name, "") for cells in shown.values()))
    return result


def _score(metric: Mapping[str, Any]) -> str:
    return str(Score(metric["value"], metric["standard_error"]))


def _difference(difference: Mapping[str, Any] | None) -> str:
    if difference is None:
        return ""
    share = "" if difference["share"] is None else f" ({difference['share']:.1%})"
    return f"{difference['value']:+.4f} ± {difference['standard_error']:.4f}{share}"
