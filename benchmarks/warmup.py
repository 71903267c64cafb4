"""Measures what the warm-up of the supernet brings (EfficientBERT, figure 4): the same candidates inherit from
supernets that were warmed up for different numbers of steps.

Candidates are drawn from the space of stage 1, the same ones for all settings of a seed, and trained as the search
trains them, on the same batches. With --base-model it is the base model alone, as in the figure. A row is a mean over
them: the score on the dev split before and after the training,
and the loss of the last ten steps. The raw numbers have the losses of all steps of the last phase.
"""

import random
from argparse import ArgumentParser, Namespace
from pathlib import Path
from statistics import mean

from benchmarks.candidates import dev_score
from benchmarks.common import Report, Row, compare
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.planning.budget import base_model, limits_of
from nas.planning.stages import plan
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace, projections
from nas.report.figures import over_steps, styled
from search_spaces.architecture import Architecture

# The loss is the mean over so many steps.
LAST = 10


def train_candidates(workspace: Workspace, seed: int, candidates: int) -> Row:
    """Train so many random candidates, or the base model if it is 0; means over them."""
    evaluator, config = TrainedEvaluator(workspace), workspace.config
    space = plan(config, workspace, "1", None, limits_of(config, workspace)).space
    rng = random.Random(seed)
    chosen = [space.sample(rng) for _ in range(candidates)] or [base_model(config, *workspace.base())]

    def train_one(architecture: Architecture) -> tuple[float, float, list[float]]:
        model = evaluator.student(architecture)
        before, losses = dev_score(evaluator, model), list[float]()
        learned = projections(workspace.supernet)
        for phase in evaluator.training_phases:
            learned, losses = evaluator.distil(model, phase, seed, learned)
        return before, dev_score(evaluator, model), losses

    before, after, losses = zip(*map(train_one, chosen), strict=True)
    steps = [mean(of_step) for of_step in zip(*losses, strict=True)]
    return {"before": mean(before), "after": mean(after), "loss": mean(steps[-LAST:]), "losses": steps}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo-ffn", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 40, 160], help="of the warm-up; default: 0 40 160")
    parser.add_argument("--candidates", type=int, default=4, help="default: %(default)s")
    parser.add_argument(
        "--base-model", dest="candidates", action="store_const", const=0, help="train the base model instead"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the candidates and their batches; default: 1 2 3"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a drawing of the losses (.png or .svg)")


def run(options: Namespace, report: Report) -> None:
    config = load_config(options.preset)
    settings = {
        f"{steps} steps": prepare(load_config(options.preset, {"warmup.steps": steps})) for steps in options.steps
    }
    fixed = {"config": config.model_dump(mode="json"), "candidates": options.candidates}

    def train_all(workspace: Workspace, seed: int) -> Row:
        return train_candidates(workspace, seed, options.candidates)

    rows = compare(settings, next(iter(settings)), train_all, options.seeds, report, fixed)
    if options.plot is not None:
        lines = {
            f"warm-up of {name}": list(enumerate(map(mean, zip(*(row["losses"] for row in of), strict=True)), 1))
            for name, of in rows.items()
        }
        with styled():
            over_steps({"Candidates": lines}).savefig(options.plot, dpi=150)
