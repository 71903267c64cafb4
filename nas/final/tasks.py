"""The final training on several tasks, one after the other or side by side on Ray, and the table of their scores."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from distill.cli import DONE, is_first_process
from distill.files import read_json, write_text
from distill.tasks.corpora import embedded_corpus
from distill.tasks.readers.glue import trained_on
from nas.config.schema import ConfigError
from nas.final.folder import METRICS, make_folder
from nas.final.run import FinalRun, run
from nas.preparation.data import check_tasks, rows_key

# Ray is imported only where it is used.
if TYPE_CHECKING:
    from nas.cluster import Cluster


def run_tasks(final: FinalRun, tasks: Sequence[str], resume: bool, cluster: "Cluster | None" = None) -> int:
    """Train and measure a student for every task, in the folders `final.out`/TASK; write and print the table of their
    scores. Returns the exit status.

    Tasks with the same training rows, MNLI with its two dev splits, are trained on once.

    Args:
        resume: leave out tasks that are finished, and continue those that were begun.
        cluster: where as many tasks as it has workers are trained at a time; None: in this process, one by one.

    Raises:
        UserError: as `nas.final.run.run`.
    """
    check_tasks_of(final, tasks)
    trained = list(dict.fromkeys(map(trained_on, tasks)))
    runs = list(_unfinished(final, tasks, trained, resume))
    if cluster is None:
        for one in runs:
            run(one)
    else:
        from nas.final.side_by_side import run_all

        run_all(runs, cluster)
    if not is_first_process():
        return DONE
    found = scores_of_tasks(final.out, tasks)
    write_text(final.out / METRICS, json.dumps(found, indent=2) + "\n")
    if final.as_json:
        print(json.dumps(found, indent=2))
    else:
        console = Console(highlight=False, soft_wrap=True)
        console.width = max(console.width, 200)  # otherwise a narrow terminal cuts figures off
        console.print(table_of_tasks(found))
        console.print(f"wrote {final.out}: a checkpoint for each of {', '.join(trained)}")
    return DONE


def _unfinished(final: FinalRun, tasks: Sequence[str], trained: Sequence[str], resume: bool) -> Iterator[FinalRun]:
    """The training on each task of `trained`, whose folder is made; with `resume` without those that are finished."""
    for task in trained:
        folder = final.out / task
        if resume and (folder / METRICS).exists():
            continue
        if is_first_process():
            make_folder(folder, resume)
        # Only a one-shot supernet is trained on several tasks together.
        others = [other for other in trained if other != task and final.config.final.start == "shared"]
        also = tuple(other for other in tasks if other != task and trained_on(other) == task)
        config = final.config.model_copy(update={"tasks": (task, *others)})
        yield replace(final, config=config, out=folder, also=also, one_of_several=True)


def check_tasks_of(final: FinalRun, tasks: Sequence[str]) -> None:
    """Raise ConfigError if a task is named twice, does not exist or has no data, before anything is trained."""
    if len(set(tasks)) < len(tasks):
        raise ConfigError("--tasks: a task is named twice")
    for task in tasks:
        config = final.config.model_copy(update={"tasks": (task,)})
        check_tasks(config)
        rows_key(config, cache(embedded_corpus))


def scores_of_tasks(out: Path, tasks: Sequence[str]) -> dict[str, Any]:
    """The content of metrics.json for several tasks: the metrics of every model on every task, and each model's mean
    over the tasks of their first metrics, in which all tasks have the same weight.
    """
    by_task: dict[str, Any] = {}
    for task in tasks:
        stored = read_json(out / trained_on(task) / METRICS)
        chosen = stored if task == trained_on(task) else stored["also"][task]
        by_task[task] = {"metrics": chosen["metrics"], "models": chosen["models"]}
    names = list(dict.fromkeys(name for found in by_task.values() for name in found["models"]))
    means = {name: fmean(first_metric(found, name)["value"] for found in by_task.values()) for name in names}
    return {"tasks": by_task, "mean": means}


def first_metric(found: Mapping[str, Any], model: str) -> Any:
    """The first metric of a model on one task: value, standard error and difference to the teacher."""
    return found["models"][model][found["metrics"][0]]


def table_of_tasks(found: Mapping[str, Any]) -> Table:
    """The table of `scores_of_tasks`: a row for each task, and one for the means."""
    names = list(found["mean"])
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    result.add_column("task")
    result.add_column("metric")
    for name in names:
        result.add_column(name, justify="right", no_wrap=True)
    for task, row in found["tasks"].items():
        scores = [first_metric(row, name) for name in names]
        cells = [f"{score['value']:.4f} ± {score['standard_error']:.4f}" for score in scores]
        result.add_row(task, row["metrics"][0], *cells)
    result.add_row("mean", "", *(f"{mean:.4f}" for mean in found["mean"].values()))
    return result
