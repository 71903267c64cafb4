"""Checks whether the shortcuts of an evaluation change its scores.

Architectures are drawn from the space of stage 1 and evaluated as in the search, then with fewer and fewer shortcuts,
and, for comparison, with another seed:

    usual       the teacher's outputs from disk, in half precision; bfloat16 where the processor has it
    live        the teacher computes its outputs in every step
    float32     the same, and all of it in float32
    seed        as live, with other batches and another dropout

Every setting has a process of its own. Kendall's tau-b is between a setting's scores and the usual ones, its interval
over resampled architectures.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers.utils import logging

from benchmarks.measuring import timed
from benchmarks.processes import in_new_process
from benchmarks.report import Report
from benchmarks.signals.measurements import DRAWING_SEED, draw
from benchmarks.signals.ranking import Signal, interval, tau
from distill.training.distillation import SavedOutputs
from distill.training.loop import make_accelerator
from nas.budget import limits_of
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.phases import TrainingPhase
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.stages import plan
from search_spaces.architecture import Architecture

SETTINGS = ("usual", "live", "float32", "seed")
COLUMNS = ("setting", "mean score", "mean difference", "root mean square", "largest", "tau", "95 %", "seconds")


class LiveEvaluator(TrainedEvaluator):
    """An evaluator whose teacher computes its outputs in every step."""

    def saved_outputs_of(self, phase: TrainingPhase, seed: int) -> SavedOutputs | None:
        return None


def scores(setting: str, workspace: Workspace, architectures: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """The score of each architecture, and the seconds of its evaluation."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    accelerator = make_accelerator(mixed_precision="no" if setting == "float32" else "auto")
    evaluator = (TrainedEvaluator if setting == "usual" else LiveEvaluator)(workspace, accelerator=accelerator)
    seed = workspace.config.seed + (setting == "seed")

    def score(architecture: Architecture) -> float:
        return evaluator.evaluate(architecture, seed).value

    return [timed(partial(score, Architecture.from_json(genes))) for genes in architectures]


def rows_of(results: Mapping[str, Sequence[tuple[float, float]]]) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each setting."""
    usual_N = np.array([score for score, _ in results["usual"]])
    rows: list[tuple[str, ...]] = []
    for setting, pairs in results.items():
        score_N, seconds_N = np.array(pairs).T
        difference_N = score_N - usual_N
        signal = Signal(setting, score_N[None], usual_N[None], float(seconds_N.mean()))
        low, high = interval(signal)
        rows.append(
            (
                setting,
                f"{score_N.mean():.4f}",
                f"{difference_N.mean():+.4f}",
                f"{np.sqrt((difference_N**2).mean()):.4f}",
                f"{np.abs(difference_N).max():.4f}",
                f"{tau(signal):+.2f}",
                f"{low:+.2f} to {high:+.2f}",
                f"{signal.seconds:.1f}",
            )
        )
    return rows


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--architectures", type=int, default=16, help="default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    config = load_config(options.preset)
    workspace = prepare(config)
    space = plan(config, workspace, "1", None, limits_of(config, workspace)).space
    architectures = [architecture.to_json() for architecture in draw(space, options.architectures)]
    results = {}
    for setting in SETTINGS:
        results[setting] = in_new_process(scores, setting, workspace, architectures)
        seeds = [DRAWING_SEED, config.seed, config.seed + 1]
        report.save({"architectures": architectures, "scores and seconds": results}, seeds=seeds)
        report.progress(f"{setting}: done")
    usual_N = np.array([score for score, _ in results["usual"]])
    report.note(
        f"{len(usual_N)} architectures, scores {usual_N.min():.4f} to {usual_N.max():.4f}, "
        f"deviation {usual_N.std(ddof=1):.4f}\n"
    )
    report.table(COLUMNS, rows_of(results))
