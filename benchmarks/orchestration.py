"""What a search costs beside training and evaluating: `python -m benchmarks.orchestration [--ledger 1000]`.

Runs trials of a fixed length (the worker sleeps) through all that a real search does: sampler, ledger in a database
file, Ray Tune, reports on the way and early stopping. From the first trial's begin to the last one's end, what the
trials did not sleep is orchestration. `--ledger` puts so many finished trials into the study first.
"""

import argparse
import functools
import os
import random
import statistics
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from ray import tune
from transformers import BertConfig

from nas import ledger
from nas.config import load_config
from nas.prepare import Workspace
from nas.runner import Cluster, connected, run
from nas.samplers import SAMPLERS
from search_spaces import cost
from search_spaces.architecture import Architecture, Base
from search_spaces.spaces import Space

BASE = Base(depth=6, width=384, heads=12, inner=1536)
EXPANSIONS = tuple(Fraction(text) for text in ("1/64", "1/32", "1/16", "1/8", "3/16", "1/4", "3/8"))
SEED = 0


def score_of(text: str) -> float:
    """A score that the architecture decides."""
    return 0.7 + 0.1 * random.Random(text).random()


def sleep(config: dict[str, Any], *, workspace: Workspace, device: str, rungs: object, seconds: float) -> None:
    """In place of `nas.runner.evaluate_trial`: the same reports, and sleep between them."""
    score = score_of(config[ledger.ARCHITECTURE])
    tune.report({"step": 0, "score": score})
    time.sleep(seconds / 2)
    tune.report({"step": 30, "score": score})
    time.sleep(seconds / 2)
    tune.report({"final": score, "attributes": {"standard_error": 0.01, "inherited": score}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--ledger", type=int, default=0)
    parser.add_argument("--sampler", default="lanas", choices=SAMPLERS)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    most = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 8)), 2)
    space = Space(BASE, (1, 2), EXPANSIONS, int(0.997 * most), most, edit_rate=0.05, labels=2)
    with tempfile.TemporaryDirectory() as scratch:
        BertConfig(num_labels=2).save_pretrained(Path(scratch) / "teacher")
        nowhere = Path(scratch)
        workspace = Workspace(load_config("demo"), nowhere, nowhere / "teacher", nowhere, nowhere)
        study = ledger.open_study(
            ledger.sqlite_url(nowhere / "study.db"), "stage-1", SAMPLERS[options.sampler](space, SEED)
        )
        rng = random.Random(SEED)
        for _ in range(options.ledger):
            ledger.enqueue(study, space.sample(rng), "before")
            trial, architecture = ledger.ask(study, space, "before", 2)
            ledger.report(study, trial.number, 30, 0.7)
            ledger.complete(study, trial.number, score_of(repr(architecture)), {"standard_error": 0.01})
        begun = time.perf_counter()
        with connected(Cluster(workers=options.workers)):
            run(
                study,
                space,
                workspace,
                Cluster(workers=options.workers),
                trials=options.ledger + options.trials,
                origin=options.sampler,
                rungs=(Fraction(1, 2),),
                evaluate=functools.partial(sleep, seconds=options.seconds),
                watch=lambda study, number: None,
            )
        whole = time.perf_counter() - begun
        ran = [trial for trial in ledger.finished(study) if trial.user_attrs[ledger.ORIGIN] != "before"]
    first = min(trial.datetime_start for trial in ran if trial.datetime_start)
    wall = (max(trial.datetime_complete for trial in ran if trial.datetime_complete) - first).total_seconds()
    idle = wall * options.workers - len(ran) * options.seconds
    pace = [(trial.datetime_complete - trial.datetime_start).total_seconds() for trial in ran]  # type: ignore[operator]
    print(
        f"{len(ran)} trials of {options.seconds} s with {options.sampler} on {options.workers} workers, "
        f"{options.ledger} trials before them: {wall:.1f} s ({whole:.1f} s with Ray's start and end)"
    )
    print(
        f"orchestration {1000 * idle / len(ran):.0f} ms a trial, {idle / (wall * options.workers):.1%} of the workers' "
        f"time; from asking to told {statistics.median(pace):.2f} s (median)"
    )


if __name__ == "__main__":
    main()
