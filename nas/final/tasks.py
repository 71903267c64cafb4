"""The final training on several tasks, one after the other, and the table of their scores."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from distill.cli import DONE, is_first_process
from distill.command.report import write_metrics
from distill.tasks.corpora import embedded_corpus
from distill.tasks.readers.glue import trained_on
from distill.training.layout import ARCHITECTURE_FILE, METRICS_FILE
from distill.training.progress import terminal
from foundation.files import read_json
from nas.config.schema import ConfigError
from nas.final.evaluation import means, table_of_tasks
from nas.final.folder import make_folder
from nas.final.run import BASE_MODEL, FinalRun, run
from nas.preparation.data import check_tasks, rows_key
from nas.preparation.workspace import base_of_study
from search_spaces.architecture import Architecture


def run_tasks(final: FinalRun, tasks: Sequence[str], resume: bool) -> int:
    """Train and measure a student for every task, in the folders `final.out`/TASK; write and print the table of their
    scores. Returns the exit status.

    Tasks with the same training rows, MNLI with its two dev splits, are trained on once.

    Args:
        resume: leave out tasks that are finished, and continue those that were begun.

    Raises:
        UserError: as `nas.final.run.run`, or a finished task has other settings.
    """
    check_tasks_of(final, tasks)
    trained = list(dict.fromkeys(map(trained_on, tasks)))
    runs = []
    for task in trained:
        folder = final.out / task
        # Only a one-shot supernet is trained on several tasks together.
        others = [other for other in trained if other != task and final.config.final.start == "one_shot"]
        also = tuple(other for other in tasks if other != task and trained_on(other) == task)
        config = final.config.model_copy(update={"tasks": (task, *others)})
        one = replace(final, config=config, out=folder, also=also, one_of_several=True)
        if resume and (folder / METRICS_FILE).exists():
            check_finished(one)
            continue
        if is_first_process():
            make_folder(folder, resume)
        runs.append(one)
    for one in runs:
        run(one)
    if not is_first_process():
        return DONE
    metrics = scores_of_tasks(final.out, tasks)
    write_metrics(final.out, metrics)
    if final.as_json:
        print(json.dumps(metrics, indent=2))
    else:
        console = terminal()
        table_of_tasks(metrics["tasks"]).print(console)
        console.print(f"wrote {final.out}: a checkpoint for each of {', '.join(trained)}")
    return DONE


def check_tasks_of(final: FinalRun, tasks: Sequence[str]) -> None:
    """Raise ConfigError if a task is named twice, does not exist or has no data, before anything is trained."""
    if len(set(tasks)) < len(tasks):
        raise ConfigError("--tasks: a task is named twice")
    for task in tasks:
        config = final.config.model_copy(update={"tasks": (task,)})
        check_tasks(config)
        rows_key(config, cache(embedded_corpus))


def check_finished(final: FinalRun) -> None:
    """Raise ConfigError unless a finished folder is what this training would make: the table of several tasks is of one
    architecture and one recipe.
    """
    stored, config = read_json(final.out / METRICS_FILE), final.out / "config.toml"
    architecture = final.architecture
    if final.transfer:
        architecture = architecture.transferred(base_of_study(final.config)[0])
    for what, same in (
        ("configuration", config.exists() and config.read_text(encoding="utf-8") == final.config.to_toml()),
        ("architecture", Architecture.load(final.out / ARCHITECTURE_FILE).to_json() == architecture.to_json()),
        ("seed", stored["seed"] == final.seed),
        ("--skip-base", (BASE_MODEL not in stored["models"]) == final.skip_base),
    ):
        if not same:
            raise ConfigError(f"--resume: {final.out} is finished, with another {what}: choose another --out")
    if missing := [task for task in final.also if task not in stored.get("also", {})]:
        raise ConfigError(f"--resume: {final.out} is finished, without scores of {missing[0]}: choose another --out")


def scores_of_tasks(out: Path, tasks: Sequence[str]) -> dict[str, Any]:
    """The content of metrics.json for several tasks: the metrics of every model on every task, and the means."""
    by_task: dict[str, Any] = {}
    for task in tasks:
        stored = read_json(out / trained_on(task) / METRICS_FILE)
        chosen = stored if task == trained_on(task) else stored["also"][task]
        by_task[task] = {"metrics": chosen["metrics"], "models": chosen["models"]}
    return {"tasks": by_task, "mean": means(by_task)}
