"""What a search costs beside training and evaluating: `python -m benchmarks orchestration [--ledger 1000]`.

Runs trials of known lengths (the worker sleeps) through all that a real search does: sampler, ledger in a database
file, Ray Tune, reports on the way and early stopping. From the first trial's begin in a worker to the begin of its
last one, what its trials did not sleep is orchestration; what is before that, the start of Ray and the workers, is
shown by itself. `--ledger` puts so many finished trials into the study first.
"""

import argparse
import functools
import itertools
import os
import random
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from statistics import mean, median
from typing import Any

import optuna
import torch
from optuna.trial import TrialState
from ray import tune
from transformers import BertConfig

from benchmarks.measuring import error_of_mean
from nas.budget import kept_importance
from nas.config.load import load_config
from nas.preparation.workspace import Workspace
from nas.runner import Cluster, connected, run
from nas.samplers import SAMPLERS, Proposer
from nas.study import ledger
from nas.study.storage import sqlite_url
from search_spaces import cost
from search_spaces.architecture import Architecture, Base
from search_spaces.spaces import Space

BASE = Base(depth=6, width=384, heads=12, inner=1536)
EXPANSIONS = tuple(Fraction(text) for text in ("1/64", "1/32", "1/16", "1/8", "3/16", "1/4", "3/8"))
SEED = 0
# Candidates among so large a lowest share are stopped halfway.
STOP = 0.3


def score_of(text: str) -> float:
    """A score that the architecture decides."""
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
    """In place of `nas.runner.evaluate_trial`: the same reports, and sleep between them. The file `log` gets a line
    after each sleep: the worker's process, when the trial began, and the seconds that it has slept so far.
    """
    begun, text = time.time(), config[ledger.ARCHITECTURE]
    length = seconds * (1 + spread * random.Random(text + "length").uniform(-1, 1))
    score = score_of(text)

    def rest(until: float) -> None:
        time.sleep(length / 2)
        if log:
            with log.open("a") as lines:
                lines.write(f"{os.getpid()} {begun} {until}\n")

    tune.report({"step": 0, "score": score})
    rest(length / 2)
    tune.report({"step": 30, "score": score})
    rest(length)
    tune.report({"final": score, "attributes": {"standard_error": 0.01}})


def demo_space() -> Space:
    """One like stage 1's of the demo."""
    most = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 8)), 2)
    return Space(BASE, (1, 2), EXPANSIONS, int(0.997 * most), most, edit_rate=0.05, labels=2)


def empty_workspace(folder: Path) -> Workspace:
    """The demo's, in this folder, with nothing in it but what the driver reads."""
    BertConfig(num_labels=2).save_pretrained(folder / "teacher")
    return Workspace(load_config("demo"), folder, folder / "teacher", folder, ())


def demo_sampler(space: Space, name: str) -> Proposer:
    """The sampler with a hint that costs what a search's does; its importance falls evenly."""
    importance = torch.arange(space.base.inner, 0, -1.0).expand(space.base.depth, -1)
    return SAMPLERS[name](space, SEED, kept_importance(list(importance)))


def fill(study: optuna.Study, space: Space, trials: int) -> None:
    """Put so many finished trials into a study."""
    rng = random.Random(SEED)
    for _ in range(trials):
        ledger.enqueue(study, space.sample(rng), "before")
        trial, architecture = ledger.ask(study, space, "before", 2)
        ledger.report(study, trial.number, 30, 0.7)
        ledger.complete(study, trial.number, score_of(repr(architecture)), {"standard_error": 0.01})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0, help="mean length of a trial")
    parser.add_argument("--spread", type=float, default=0.25, help="lengths differ by up to this share of the mean")
    parser.add_argument("--ledger", type=int, default=0, help="finished trials before the first one")
    parser.add_argument("--sampler", default="lanas", choices=SAMPLERS)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    space = demo_space()
    with tempfile.TemporaryDirectory() as scratch:
        workspace = empty_workspace(Path(scratch))
        sampler = demo_sampler(space, options.sampler)
        study = ledger.open_study(sqlite_url(Path(scratch) / "study.db"), "stage-1", sampler)
        log = Path(scratch) / "log"
        fill(study, space, options.ledger)
        start = time.time()
        with connected(Cluster(workers=options.workers)):
            run(
                study,
                space,
                workspace,
                Cluster(workers=options.workers),
                trials=options.ledger + options.trials,
                origin=options.sampler,
                rungs=(Fraction(1, 2),),
                stop=STOP,
                evaluate=functools.partial(sleep, seconds=options.seconds, spread=options.spread, log=log),
                watch=lambda study, number: None,
            )
        # Of each worker its trials' beginnings, and what each slept: its last line says all.
        slept: dict[str, dict[float, float]] = {}
        for line in log.read_text().splitlines():
            worker, begun, seconds = line.split()
            slept.setdefault(worker, {})[float(begun)] = float(seconds)
        stopped = sum(trial.state == TrialState.PRUNED for trial in study.trials)
    lost = [
        after - before - trials[before] for trials in slept.values() for before, after in itertools.pairwise(trials)
    ]
    lengths = [length for trials in slept.values() for length in trials.values()]
    alone, length = mean(lost), mean(lengths)
    first = min(begun for trials in slept.values() for begun in trials)
    print(
        f"{len(lengths)} trials of {length:.2f} s with {options.sampler} on {len(slept)} workers, {stopped} of them "
        f"stopped, {options.ledger} trials before them; the first one began after {first - start:.1f} s"
    )
    print(
        f"orchestration {1000 * alone:.0f} ± {1000 * error_of_mean(lost):.0f} ms a trial "
        f"(median {1000 * median(lost):.0f}), "
        f"{alone / (alone + length):.1%} of the wall time"
    )


if __name__ == "__main__":
    main()
