"""What a search costs besides training and evaluating candidates: time for each trial.

Trials of known lengths (the worker sleeps) go through all that those of a real search do: sampler, ledger in a database
file, Ray Tune, reports of intermediate values, early stopping, and notes for the dashboard. Orchestration is what
passes in a worker from the beginning of its first trial to the beginning of its last one, without what its trials
sleep. The time before, in which Ray and the workers start, is shown by itself. --ledger puts so many finished trials
into the study first.
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

from benchmarks.common import Report, in_new_process, summarise
from nas.config.load import load_config
from nas.planning.budget import kept_importance
from nas.preparation.data import TaskFolders
from nas.preparation.workspace import Workspace
from nas.report.notes import add_note
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.storage import sqlite_url
from nas.workers.cluster import Cluster, ray_session
from nas.workers.runner import run as run_trials
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.spaces import Space

BASE = Base(depth=6, width=384, heads=12, inner=1536)
EXPANSIONS = tuple(Fraction(text) for text in ("1/64", "1/32", "1/16", "1/8", "3/16", "1/4", "3/8"))
SEED = 0
# Lengths of trials differ from the mean by up to this fraction of it.
SPREAD = 0.25
# At half of their training, candidates are pruned that are among this lowest fraction.
STOP = 0.3


def score_of(text: str) -> float:
    """A random score that is always the same for one architecture."""
    return 0.7 + 0.1 * random.Random(text).random()


def sleep(
    config: dict[str, Any], *, workspace: Workspace, device: str, rungs: object, seconds: float, log: Path
) -> None:
    """Report what `nas.workers.runner.evaluate_trial` reports, and sleep in place of training.

    Args:
        seconds: the mean length of a trial.
        log: gets a line after each sleep, with the worker's process, the time when the trial began, and the seconds
            that it has slept so far.
    """
    started, begun, text = time.time(), time.monotonic(), config[ledger.ARCHITECTURE]
    length = seconds * (1 + SPREAD * random.Random(text + "length").uniform(-1, 1))
    score = score_of(text)

    def sleep_half(slept: float) -> None:
        time.sleep(length / 2)
        with log.open("a") as lines:
            lines.write(f"{os.getpid()} {started} {slept}\n")

    tune.report({"step": 0, "score": score, "seconds": time.monotonic() - begun})
    sleep_half(length / 2)
    tune.report({"step": 30, "score": score, "seconds": time.monotonic() - begun})
    sleep_half(length)
    tune.report({"final": score, "attributes": {"standard_error": 0.01}, "seconds": time.monotonic() - begun})


def demo_space() -> Space:
    """A space like that of the demo's stage 1."""
    most = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 8)), 2)
    return Space(
        BASE, {"stack": (1, 2), "expansion": EXPANSIONS}, int(0.997 * most), most, mutation_rate=0.05, num_labels=2
    )


def open_study(folder: Path, space: Space, sampler: str) -> optuna.Study:
    """The study in this folder. Its sampler has a zero-cost proxy that takes as long as a search's; the importance
    falls evenly.
    """
    importance = torch.arange(space.base.inner, 0, -1.0).expand(space.base.depth, -1)
    proposer = SAMPLERS[sampler](space, SEED, kept_importance(list(importance)))
    return ledger.open_study(sqlite_url(folder / "study.db"), "stage-1", proposer)


def fill(folder: Path, sampler: str, trials: int) -> None:
    """Put so many finished trials into the study of this folder."""
    space, rng = demo_space(), random.Random(SEED)
    study = open_study(folder, space, sampler)
    for _ in range(trials):
        ledger.enqueue(study, space, space.sample(rng), "before")
        trial, architecture = ledger.ask(study, space, "before")
        ledger.report(study, trial.number, 30, 0.7)
        ledger.complete(study, trial.number, score_of(repr(architecture)), {"standard_error": 0.01})


def measure(folder: Path, options: Namespace) -> dict[str, Any]:
    """Run the trials in this folder; what they cost by what it is."""
    space, log = demo_space(), folder / "log"
    study = open_study(folder, space, options.sampler)
    BertConfig(num_labels=2).save_pretrained(folder / "teacher")
    # Of the demo, with only what the driver reads.
    workspace = Workspace(load_config("demo"), TaskFolders(folder, folder / "teacher"), folder)
    started = time.time()
    cluster = Cluster(workers=options.workers)
    with ray_session(cluster):
        run_trials(
            study,
            space,
            workspace,
            cluster,
            trials=options.ledger + options.trials,
            origin=options.sampler,
            rungs=(Fraction(1, 2),),
            stop=STOP,
            evaluate=functools.partial(sleep, seconds=options.seconds, log=log),
            on_trial=add_note,
        )
    # By worker, the time when each trial began, and what it slept in all, which is in the last line of a trial.
    slept: dict[str, dict[float, float]] = {}
    for line in log.read_text().splitlines():
        worker, begin, seconds = line.split()
        slept.setdefault(worker, {})[float(begin)] = float(seconds)
    orchestration = [
        after - before - trials[before] for trials in slept.values() for before, after in itertools.pairwise(trials)
    ]
    return {
        "orchestration": orchestration,
        "trials": [length for trials in slept.values() for length in trials.values()],
        "until the first trial began": min(begin for trials in slept.values() for begin in trials) - started,
        "workers": len(slept),
        "pruned": sum(trial.state == TrialState.PRUNED for trial in study.trials),
    }


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="mean length of a trial; default: %(default)s")
    parser.add_argument("--ledger", type=int, default=0, help="finished trials before the first one; default: 0")
    parser.add_argument("--sampler", default="lanas", choices=SAMPLERS)
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        in_new_process(fill, Path(scratch), options.sampler, options.ledger)
        results = in_new_process(measure, Path(scratch), options)
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
