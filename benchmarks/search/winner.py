"""Compares the winners of a search with each other and with baselines of their size, after equal training.

The winner of every stage, the uniform slice and the global importance allocation are trained with the candidates'
recipe for the given number of steps, over seeds that the search did not use, and scored on the whole dev split. All see
the same batches under one seed, so differences are taken seed by seed.
"""

import gc
import itertools
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, stdev

from benchmarks.measuring import difference, take_turns
from benchmarks.report import Report
from distill.tasks.metrics import standard_error
from distill.training.evaluation import evaluate
from nas.budget import limits_of
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.prepare import prepare
from nas.stages import GLOBAL, UNIFORM, plan
from nas.study.folder import STAGES, Folder
from search_spaces import cost
from search_spaces.architecture import Architecture

FIRST_SEED = 101


def scores_after_training(
    evaluator: TrainedEvaluator,
    architectures: Mapping[str, Architecture],
    steps: int,
    seeds: Sequence[int],
    report: Report,
) -> dict[str, list[float]]:
    """Scores on the whole dev split after `steps` steps of the candidates' training with each of the seeds, by name."""
    task, pad_id = evaluator.task, evaluator.supernet_config.pad_token_id
    folders = evaluator.workspace.folders
    dev, split = folders.rows("dev"), folders.split("dev")
    *before, last = evaluator.training_phases
    phases = [*before, replace(last, recipe=replace(last.recipe, steps=steps))]

    @cache  # an architecture can have several names
    def score(architecture: Architecture, seed: int) -> float:
        model = evaluator.student(architecture)
        evaluator.train(model, phases, seed)
        scores = evaluate(model, dev, split, task, accelerator=evaluator.accelerator, pad_id=pad_id)
        del model
        gc.collect()
        return scores[task.metrics[0]].value

    return take_turns(
        {name: partial(score, architecture) for name, architecture in architectures.items()},
        seeds,
        on_value=lambda name, seed, value: report.progress(f"seed {seed}  {name}: {value:.4f}"),
    )


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("study", type=Path, metavar="STUDY", help="folder of a search, such as results/demo")
    parser.add_argument("--steps", type=int, default=150, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help=f"how many, from {FIRST_SEED} on; default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    config = load_config(str(options.study / "config.toml"))
    workspace = prepare(config)
    evaluator = TrainedEvaluator(workspace)
    stage = plan(config, workspace, "1", None, limits_of(config, workspace))
    baselines = {name: architecture for architecture, name, _ in stage.baselines}
    folder = Folder(options.study)
    bests = {stage: json.loads(folder.best(stage).read_text()) for stage in STAGES if folder.best(stage).exists()}
    architectures = {
        f"winner of {stage}": Architecture.from_json(best["winner"]["architecture"]) for stage, best in bests.items()
    } | {name: baselines[name] for name in (UNIFORM, GLOBAL)}
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    scores = scores_after_training(evaluator, architectures, options.steps, seeds, report)
    report.save(
        {
            "scores": scores,
            "architectures": {name: architecture.to_json() for name, architecture in architectures.items()},
        },
        seeds=seeds,
    )
    dev_rows = len(workspace.folders.rows("dev"))
    lines = []
    for name, values in scores.items():
        spread = f"{stdev(values):.4f}" if len(values) > 1 else ""
        params = cost.params(architectures[name], workspace.labels, evaluator.task.type.head)
        by_seed = (f"{value:.4f}" for value in values)
        binomial = f"{mean(values):.4f} ± {standard_error(mean(values), dev_rows):.4f}"
        lines.append((name, f"{params:,}", *by_seed, binomial, spread))
    columns = (*(f"seed {seed}" for seed in seeds), "mean ± binomial error", "deviation over seeds")
    title = f"{config.task}, {options.steps} steps, {dev_rows:,} dev rows"
    report.table(("architecture", "parameters", *columns), lines, title)
    differences = []
    for left, right in itertools.combinations(architectures, 2):
        by_seed = (f"{a - b:+.4f}" for a, b in zip(scores[left], scores[right], strict=True))
        differences.append((f"{left} - {right}", *by_seed, difference(scores[left], scores[right]).with_error(4, "+")))
    report.table(("difference", *(f"seed {seed}" for seed in seeds), "mean"), differences)
