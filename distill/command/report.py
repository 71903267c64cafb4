"""What the commands that train or prune a model report: metrics.json, and its table."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from safetensors import SafetensorError
from transformers import PreTrainedModel

from distill.cli import DONE
from distill.command.folder import CONTENTS, contents_of, write_new
from distill.command.options import recorded
from distill.table import Column, Table, difference, millions, with_error
from distill.training.evaluation import Load
from distill.training.layout import ARCHITECTURE_FILE, METRICS_FILE
from distill.training.measure import Measurements, environment
from distill.training.progress import Progress, ProgressCallback, terminal
from distill.training.run import Examples, Training, TrainingRun, run_training
from distill.training.sentences import copy_modules
from foundation.errors import UserError
from foundation.files import save_pretrained, write_text
from search_spaces.architecture import Architecture


def train_and_report(
    options: Any, models: Mapping[str, Training], examples: Examples, accelerator: Accelerator, **more: Any
) -> int:
    """`train_models`, with its progress and results on the terminal; returns the exit status."""
    quiet = not accelerator.is_main_process
    console = terminal(quiet=quiet, stderr=options.json)
    with Progress(console, options.quiet) as progress:
        metrics = train_models(options, models, examples, accelerator, progress.update, **more)
    return DONE if metrics is None else show(options, console, metrics)


def train_models(
    options: Any,
    models: Mapping[str, Training],
    examples: Examples,
    accelerator: Accelerator,
    on_progress: ProgressCallback,
    **more: Any,
) -> dict[str, Any] | None:
    """Train the models and write metrics.json, with what more is given. Returns its content; None in all processes but
    the first.

    Raises:
        UserError: as `run_training`, or the folder cannot be written.
    """
    kept = recorded(options) | {CONTENTS: contents_of(options)}
    given = {"out": options.out, "options": kept, "seed": options.seed}
    run = TrainingRun(models=models, examples=examples, tensorboard=options.tensorboard, **given)
    try:
        measured = run_training(run, accelerator, on_progress)
        if not accelerator.is_main_process:
            return None
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
    return metrics


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


def write_and_show(
    options: Any,
    metrics: Mapping[str, Any],
    model: PreTrainedModel,
    tokenizer: Any,
    architecture: Architecture | None,
    *lines: str,
    modules_of: str | None = None,
) -> int:
    """Write the folder `--out` with a model, and `show` its metrics.json; returns the exit status.

    Args:
        modules_of: the sentence encoder whose modules and prompts the folder gets; None: it is none.
    """

    def write(draft: Path) -> None:
        save_pretrained(draft, model, tokenizer)
        if architecture is not None:
            architecture.save(draft / ARCHITECTURE_FILE)
        if modules_of is not None:
            copy_modules(modules_of, draft)
        write_metrics(draft, metrics)

    write_new(options.out, write)
    return show(options, terminal(stderr=options.json), metrics, *lines)


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    write_text(folder / METRICS_FILE, json.dumps(metrics, indent=2) + "\n")


def show(options: Any, console: Console, metrics: Mapping[str, Any], *lines: str) -> int:
    """Print the content of metrics.json as JSON or as a table, with further lines below it; returns the exit status."""
    if options.json:
        print(json.dumps(metrics, indent=2))
    else:
        show_measurements(console, metrics)
        for line in (*lines, f"wrote {options.out}"):
            console.print(line)
    return DONE


def show_measurements(console: Console, metrics: Mapping[str, Any], title: str = "") -> None:
    """Print the measurements in metrics.json: the table, and a line for each router of each model with experts."""
    measurement_table(metrics, title).print(console)
    for name, row in metrics["models"].items():
        for load in row.get("expert_load", ()):
            console.print(f"{name}: experts of {Load(**load)}")


def measurement_table(metrics: Mapping[str, Any], title: str = "") -> Table:
    """The measurements in metrics.json as a table: a row for each model, a column for everything that was measured.

    Args:
        title: how the caption begins, which says how many examples there are.
    """
    names, models = metrics["metrics"], metrics["models"]
    pairs = [row[names[0]].get("difference") for row in models.values()] if names else [None] * len(models)
    reference = next((pair["to"] for pair in pairs if pair), None)
    columns = (
        Column("model", is_text=True),
        *(Column(name, lambda row: with_error((row["value"], row["standard_error"]))) for name in names),
        Column(f"{names[0]} − {reference}'s" if names else "", _difference),
        *(Column(name, millions) for name in ("parameters", "active", "in FFNs", "MACs")),
        Column("latency", "{:.1f} ms".format),
        Column("speed-up", "{:.2f}×".format),
    )
    rows = []
    for (name, row), pair in zip(models.items(), pairs, strict=True):
        params, active, time = row["params"], row.get("params_active"), row.get("latency_ms")
        costs = params, active if active != params else None, row.get("ffn_params"), row.get("macs")
        speed_up = models[reference]["latency_ms"] / time if time and reference else None
        rows.append((name, *(row[metric] for metric in names), pair, *costs, time, speed_up))
    examples = f"{metrics['dev_rows']:,} rows of the dev split" if metrics["dev_rows"] else ""
    tokens = f"; MACs and latency of {_of_sentences(metrics)}" if "tokens" in metrics else ""
    return Table(columns, rows, f"{title}{examples}{tokens}")


def _of_sentences(metrics: Mapping[str, Any]) -> str:
    """What latencies are of. MACs are always those of one sentence."""
    batch, runtime = metrics.get("batch", 1), metrics.get("runtime", "torch")
    length = f"a sentence of {metrics['tokens']} tokens"
    batches = "" if batch == 1 else f" ({batch} at once for latency)"
    return length + batches + ("" if runtime == "torch" else f", in {runtime}")


def _difference(row: Mapping[str, Any]) -> str:
    fraction = "" if row["share"] is None else f" ({row['share']:.1%})"
    return difference((row["value"], row["standard_error"])) + fraction
