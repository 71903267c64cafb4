"""Do the shortcuts of an evaluation change what it finds?

    python -m benchmarks agreement [--preset demo] [--architectures 16] [--out FILE.json]

Architectures are drawn from the space of stage 1 and evaluated as the search does: as it is, with one shortcut less,
and, for scale, under another seed:

    usual       the teacher's outputs from disk, in half precision; bfloat16 where the processor has it
    live        the teacher computes its outputs in every step
    float32     the same, and all of it in float32
    seed        as live, with other batches and another dropout

Every setting has a process of its own. Kendall's tau-b is between a setting's scores and the usual ones, its interval
over resampled architectures.
"""

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

from benchmarks.signals.evidence import draw
from benchmarks.signals.ranking import Signal, interval, taus
from distill.files import write_text
from distill.training.distillation import Saved
from distill.training.loop import make_accelerator
from nas.budget import limits_of
from nas.config.load import load_config
from nas.evaluate import Evaluator
from nas.preparation.phases import TrainingPhase
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.stages import plan
from search_spaces.architecture import Architecture

SETTINGS = ("usual", "live", "float32", "seed")


class Live(Evaluator):
    """An evaluator whose teacher computes."""

    def saved(self, found: TrainingPhase, seed: int) -> Saved | None:
        return None


def scores(setting: str, workspace: Workspace, architectures: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Of each architecture its score, and the seconds of its evaluation."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    accelerator = make_accelerator(rounded=setting != "float32")
    evaluator = (Evaluator if setting == "usual" else Live)(workspace, accelerator=accelerator)
    seed = workspace.config.seed + (setting == "seed")
    found = []
    for one in architectures:
        begun = time.perf_counter()
        value = evaluator.evaluate(Architecture.from_json(one), seed).value
        found.append((value, time.perf_counter() - begun))
        print(f"{setting:8} {value:.4f}  {found[-1][1]:.1f} s", flush=True)
    return found


def report(found: dict[str, list[tuple[float, float]]]) -> str:
    """A line for each setting."""
    usual_N = np.array([score for score, _ in found["usual"]])
    lines = [
        f"{len(usual_N)} architectures, scores {usual_N.min():.4f} to {usual_N.max():.4f}, "
        f"deviation {usual_N.std(ddof=1):.4f}\n",
        "| setting | mean score | differences: mean | root mean square | largest | tau | 95 % | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for setting, pairs in found.items():
        score_N, seconds_N = np.array(pairs).T
        apart_N = score_N - usual_N
        signal = Signal(setting, score_N[None], usual_N[None], float(seconds_N.mean()))
        tau = taus(signal, np.ones((1, len(usual_N))))[0]
        low, high = interval(signal)
        lines.append(
            f"| {setting} | {score_N.mean():.4f} | {apart_N.mean():+.4f} | {np.sqrt((apart_N**2).mean()):.4f} | "
            f"{np.abs(apart_N).max():.4f} | {tau:+.2f} | {low:+.2f} to {high:+.2f} | {signal.seconds:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="do the shortcuts of an evaluation change what it finds")
    parser.add_argument("--preset", default="demo", help="preset or .toml file")
    parser.add_argument("--architectures", type=int, default=16)
    parser.add_argument("--out", type=Path, help="file of all scores")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = load_config(options.preset)
    workspace = prepare(config)
    space = plan(config, workspace, "1", None, limits_of(config, workspace)).space
    architectures = [one.to_json() for one in draw(space, options.architectures)]
    found = {}
    for setting in SETTINGS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found[setting] = pool.submit(scores, setting, workspace, architectures).result()
        if options.out:
            write_text(options.out, json.dumps({"architectures": architectures, "scores": found}, indent=1) + "\n")
    print(f"\n{report(found)}")


if __name__ == "__main__":
    main()
