"""Real searches for `coarse_to_fine`: all stages against single ones that cost as much."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from optuna.trial import FrozenTrial

from benchmarks.measuring import summarise
from benchmarks.report import BenchmarkError, Report
from benchmarks.search.winner import scores_after_training
from nas.budget import limits_of
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.context import preparation_context
from nas.preparation.prepare import prepare
from nas.preparation.teacher import prepare_task
from nas.stages import UNIFORM, plan
from nas.study import ledger
from nas.study.folder import Folder
from nas.study.names import CONFIRMATION, existing_studies
from search_spaces.architecture import Architecture

ALL_STAGES, STAGE_1, STAGE_3 = "all", "1", "3"


@dataclass(frozen=True)
class Spent:
    """The cost of a search in seconds of workers, by stage where it has a dict.

    Attributes:
        trials: how many trials each stage ran.
        stages: seconds of the trials.
        confirmations: seconds of the confirmations.
        supernet: seconds of stage 3's supernet, for which all workers wait.
    """

    trials: dict[str, int]
    stages: dict[str, float]
    confirmations: dict[str, float]
    supernet: float

    @property
    def total(self) -> float:
        return sum(self.stages.values()) + sum(self.confirmations.values()) + self.supernet

    def affordable(self, stage: str, seconds: float) -> int:
        """How many trials of a stage cost so many seconds, with its confirmations and its supernet."""
        before = self.confirmations[stage] + (self.supernet if stage == STAGE_3 else 0.0)
        return max(1, round((seconds - before) / self.stages[stage] * self.trials[stage]))


def spent_by(folder: Folder, stages: Sequence[str], workers: int) -> Spent:
    """The cost of an uninterrupted search, by its ledgers."""
    studies = existing_studies(folder)
    of_stages = {stage: ledger.finished(studies[f"stage-{stage}"]) for stage in stages}
    confirmed = ledger.finished(studies[CONFIRMATION])

    def seconds(trials: Sequence[FrozenTrial]) -> float:
        return sum(trial.user_attrs.get("seconds", 0.0) for trial in trials)

    waited = 0.0
    if STAGE_3 in stages:
        started = min(trial.datetime_start for trial in of_stages[STAGE_3] if trial.datetime_start)
        ends = (trial.datetime_complete for trials in (*of_stages.values(), confirmed) for trial in trials)
        before = [end for end in ends if end and end <= started]
        waited = (started - max(before)).total_seconds() if before else 0.0
    return Spent(
        {stage: len(trials) for stage, trials in of_stages.items()},
        {stage: seconds(trials) for stage, trials in of_stages.items()},
        {
            stage: seconds(
                [trial for trial in confirmed if trial.user_attrs[ledger.ORIGIN].startswith(f"stage-{stage} ")]
            )
            for stage in stages
        },
        workers * waited,
    )


def run_search(folder: Folder, preset: str, seed: int, *arguments: str) -> None:
    """Run a search by the command line, or the rest of it.

    Raises:
        BenchmarkError: it ended with an error.
    """
    study = ("--out", str(folder.path.parent), "--study", folder.path.name)
    line = ["--preset", preset, *study, "--seed", str(seed), *arguments]
    if folder.config.exists():
        line.append("--resume")
    if subprocess.run([sys.executable, "-m", "nas.search", *line], check=False).returncode:
        raise BenchmarkError(f"python -m nas.search {' '.join(line)} ended with an error")


def winners(out: Path, preset: str, seed: int, report: Report) -> tuple[dict[str, Architecture], TrainedEvaluator]:
    """The winners of the three searches of one seed, and an evaluator that trains them; prints what they cost."""
    config = load_config(preset, {"seed": seed})
    workspace = prepare(config)
    for task in config.tasks:  # also what only stage 3 needs
        prepare_task(preparation_context(config.model_copy(update={"tasks": (task,)})))
    workers = min(2, os.cpu_count() or 1)
    folders = {name: Folder(out / name) for name in (ALL_STAGES, STAGE_1, STAGE_3)}
    if not folders[ALL_STAGES].best("3").exists():
        run_search(folders[ALL_STAGES], preset, seed, "--stage", "all")
    cost_of_all = spent_by(folders[ALL_STAGES], ("1", "2", "3"), workers)
    baselines = plan(config, workspace, "1", None, limits_of(config, workspace)).baselines
    next(architecture for architecture, name, _ in baselines if name == UNIFORM).save(out / "uniform.json")
    for stage, start in ((STAGE_1, ()), (STAGE_3, ("--from", str(out / "uniform.json")))):
        if not folders[stage].best(stage).exists():
            trials = f"{cost_of_all.affordable(stage, cost_of_all.total)}"
            run_search(folders[stage], preset, seed, "--stage", stage, "--trials", trials, *start)
    rows = []
    for name, folder in folders.items():
        spent = spent_by(folder, ("1", "2", "3") if name == ALL_STAGES else (name,), workers)
        # Alone, stage 3 has no trial before its supernet; and it may have found the one of all stages in the cache.
        total = spent.total + (cost_of_all.supernet if name == STAGE_3 else 0.0)
        rows.append((f"stages {name}", " + ".join(map(str, spent.trials.values())), f"{total:.0f}"))
    report.table((f"seed {seed}", "candidates", "seconds of workers"), rows)
    best_of = {f"stages {name}": Architecture.load(folder.architecture) for name, folder in folders.items()}
    return best_of, TrainedEvaluator(workspace)


def on_demo(out: Path, preset: str, searches: int, steps: int, seeds: range, report: Report) -> None:
    """Train the winners of all searches, and print their scores and the differences search by search."""
    os.environ["FFN_NAS_CACHE"] = str((out / "cache").resolve())
    scores: list[dict[str, list[float]]] = []
    for seed in range(searches):
        architectures, evaluator = winners(out / f"seed-{seed}", preset, seed, report)
        scores.append(scores_after_training(evaluator, architectures, steps, seeds, report))
        report.save({"scores of each search": scores}, seeds=[*range(searches), *seeds])
    means = [{name: mean(values) for name, values in of_search.items()} for of_search in scores]
    columns, rows = differences(means)
    report.table(columns, rows, f"{steps} steps, whole dev split, mean of seeds {seeds[0]} to {seeds[-1]}")


def differences(scores: Sequence[Mapping[str, float]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a table of scores, a row for each search, and of how far the first column is above the
    others; for several searches with a row of means.
    """
    first, *others = scores[0]
    columns = ["seed", first, *others, *(f"{first} - {other}" for other in others)]
    values = [[*row.values(), *(row[first] - row[other] for other in others)] for row in scores]
    signs = [""] * len(scores[0]) + ["+"] * len(others)
    rows: list[list[Any]] = [
        [seed, *(f"{value:{sign}.4f}" for value, sign in zip(row, signs, strict=True))]
        for seed, row in enumerate(values)
    ]
    if len(rows) > 1:  # one search has no error
        of_columns = zip(zip(*values, strict=True), signs, strict=True)
        rows.append(["mean", *(summarise(column).with_error(4, sign) for column, sign in of_columns)])
    return columns, rows
