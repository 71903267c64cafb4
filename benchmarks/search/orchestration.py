"""Measures the overhead of a search: what it costs besides training and evaluating candidates.

Trials of known lengths (the worker sleeps) go through all that those of a real search do: sampler, ledger in a database
file, Ray Tune, reports of intermediate values, and early stopping. Orchestration is what passes in a worker from the
beginning of its first trial to the beginning of its last one, without what its trials sleep. The time before, in which
Ray and the workers start, is shown by itself. --ledger puts so many finished trials into the study first.
"""

import functools
import itertools
import os
import random
import tempfile
import time
from argparse import ArgumentParser, Namespace
from fractions import Fraction
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
import torch
from optuna.trial import TrialState
from ray import tune
from transformers import BertConfig

from benchmarks.measuring import summarise
from benchmarks.report import Report
from nas.budget import kept_importance
from nas.cluster import Cluster, ray_session
from nas.config.load import load_config
from nas.preparation.data import TaskFolders
from nas.preparation.workspace import Workspace
from nas.runner import OnTrial
from nas.runner import run as run_trials
from nas.samplers import SAMPLERS, Proposer
from nas.study import ledger
from nas.study.description import Parameters
from nas.study.storage import sqlite_url
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.spaces import Space

BASE = Base(depth=6, width=384, heads=12, inner=1536)
EXPANSIONS = tuple(Fraction(text) for text in ("1/64", "1/32", "1/16", "1/8", "3/16", "1/4", "3/8"))
SEED = 0
# At half of their training, candidates are pruned that are among this lowest share.
STOP = 0.3


def score_of(text: str) -> float:
    """A random score that is always the same for one architecture."""
    return 0.7 + 0.1 * random.Random(text).random()


def sleep(
    config: dict[str, Any],
    *,
    workspace: Workspace,
    device: str,
    rungs: object,
    seconds: float,
    spread: float,
    log: Path | None = None,
) -> None:
    """Report what `nas.runner.evaluate_trial` reports, and sleep in place of training.

    Args:
        seconds: the mean length of a trial.
        spread: lengths differ from the mean by up to this share of it.
        log: gets a line after each sleep, with the worker's process, the time when the trial began, and the seconds
            that it has slept so far.
    """
    started, begun, text = time.time(), time.monotonic(), config[ledger.ARCHITECTURE]
    length = seconds * (1 + spread * random.Random(text + "length").uniform(-1, 1))
    score = score_of(text)

    def seconds_so_far() -> float:
        return time.monotonic() - begun

    def sleep_half(slept: float) -> None:
        time.sleep(length / 2)
        if log:
            with log.open("a") as lines:
                lines.write(f"{os.getpid()} {started} {slept}\n")

    tune.report({"step": 0, "score": score, "seconds": seconds_so_far()})
    sleep_half(length / 2)
    tune.report({"step": 30, "score": score, "seconds": seconds_so_far()})
    sleep_half(length)
    tune.report({"final": score, "attributes": {"standard_error": 0.01}, "seconds": seconds_so_far()})


def demo_space() -> Space:
    """A space like that of the demo's stage 1."""
    most = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 8)), 2)
    return Space(BASE, (1, 2), EXPANSIONS, int(0.997 * most), most, edit_rate=0.05, labels=2)


def empty_workspace(folder: Path) -> Workspace:
    """A workspace of the demo in this folder that has only what the driver reads."""
    BertConfig(num_labels=2).save_pretrained(folder / "teacher")
    return Workspace(load_config("demo"), TaskFolders(folder, folder / "teacher"), folder)


def demo_sampler(space: Space, name: str) -> Proposer:
    """The sampler with a zero-cost proxy that takes as long as a search's; its importance falls evenly."""
    importance = torch.arange(space.base.inner, 0, -1.0).expand(space.base.depth, -1)
    return SAMPLERS[name](space, SEED, kept_importance(list(importance)))


def fill(study: optuna.Study, space: Space, trials: int) -> None:
    """Put so many finished trials into a study."""
    rng = random.Random(SEED)
    for _ in range(trials):
        ledger.enqueue(study, Parameters.of(space), space.sample(rng), "before")
        trial, architecture = ledger.ask(study, space, "before", 2)
        ledger.report(study, trial.number, 30, 0.7)
        ledger.complete(study, trial.number, score_of(repr(architecture)), {"standard_error": 0.01})


def demo_study(folder: Path, space: Space, sampler: str) -> optuna.Study:
    """The study in this folder, which is made if it is not there."""
    return ledger.open_study(sqlite_url(folder / "study.db"), "stage-1", demo_sampler(space, sampler))


def run_sleeping(
    study: optuna.Study,
    space: Space,
    folder: Path,
    *,
    trials: int,
    sampler: str,
    workers: int = 2,
    stop: float = 0.0,
    on_trial: OnTrial = lambda study, number: None,
    **lengths: Any,
) -> None:
    """Run trials that `sleep`, as a search would run them, until so many of the study have ended.

    Args:
        lengths: arguments of `sleep`.
    """
    cluster = Cluster(workers=workers)
    with ray_session(cluster):
        run_trials(
            study,
            space,
            empty_workspace(folder),
            cluster,
            trials=trials,
            origin=sampler,
            rungs=(Fraction(1, 2),),
            stop=stop,
            evaluate=functools.partial(sleep, **lengths),
            on_trial=on_trial,
        )


def measure(folder: Path, options: Namespace) -> dict[str, Any]:
    """Run the trials in this folder; the seconds of everything by what it is."""
    space = demo_space()
    study = demo_study(folder, space, options.sampler)
    log = folder / "log"
    fill(study, space, options.ledger)
    started = time.time()
    run_sleeping(
        study,
        space,
        folder,
        trials=options.ledger + options.trials,
        sampler=options.sampler,
        workers=options.workers,
        stop=STOP,
        seconds=options.seconds,
        spread=options.spread,
        log=log,
    )
    # By worker, the time when each trial began, and what it slept in all, which is in the last line of a trial.
    slept: dict[str, dict[float, float]] = {}
    for line in log.read_text().splitlines():
        worker, began, seconds = line.split()
        slept.setdefault(worker, {})[float(began)] = float(seconds)
    orchestration = [
        after - before - trials[before] for trials in slept.values() for before, after in itertools.pairwise(trials)
    ]
    return {
        "orchestration": orchestration,
        "trials": [length for trials in slept.values() for length in trials.values()],
        "until the first trial began": min(began for trials in slept.values() for began in trials) - started,
        "workers": len(slept),
        "pruned": sum(trial.state == TrialState.PRUNED for trial in study.trials),
    }


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="mean length of a trial; default: %(default)s")
    parser.add_argument(
        "--spread", type=float, default=0.25, help="share by which lengths differ; default: %(default)s"
    )
    parser.add_argument("--ledger", type=int, default=0, help="finished trials before the first one; default: 0")
    parser.add_argument("--sampler", default="lanas", choices=SAMPLERS)
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        results = measure(Path(scratch), options)
    report.save(results, seeds=[SEED])
    orchestration, length = summarise(results["orchestration"]), mean(results["trials"])
    row = (
        options.ledger,
        f"{1000 * orchestration.mean:.0f} ± {1000 * orchestration.error:.0f} ms",
        f"{1000 * orchestration.median:.0f} ms",
        f"{orchestration.mean / (orchestration.mean + length):.1%}",
        f"{results['until the first trial began']:.1f} s",
        results["pruned"],
    )
    columns = ("trials before", "a trial", "median", "of the wall time", "until the first trial begins", "pruned")
    title = f"{len(results['trials'])} trials of {length:.2f} s with {options.sampler} on {results['workers']} workers"
    report.table(columns, [row], title)
