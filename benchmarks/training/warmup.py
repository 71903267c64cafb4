"""What the warm-up of the supernet brings (EfficientBERT, figure 4): the same candidates, inherited from supernets that
were warmed up for different numbers of steps.

    python -m benchmarks warmup [--preset demo] [--steps 0 40 160] [--candidates 4] [--seeds 1 2 3] [--out FILE.json]

Candidates are drawn from the space of stage 1, the same ones for all settings of a seed, and trained as the search
trains them, on the same batches. A row is a mean over them: score on the dev split before and after the training, and
the loss of the last ten steps.
"""

import argparse
import random
from pathlib import Path
from statistics import mean

from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks.training.settings import compare
from distill.training.evaluation import evaluate
from nas.budget import limits_of
from nas.config.load import load_config
from nas.evaluate import Evaluator
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace, projections
from nas.stages import plan

LAST = 10


def main() -> None:
    parser = argparse.ArgumentParser(description="warm-up against none")
    parser.add_argument("--preset", default="demo", help="preset or .toml file")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 40, 160], help="of the warm-up")
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the candidates and their batches")
    parser.add_argument("--out", type=Path, help="file of all scores")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    settings = {
        f"{steps} steps": prepare(load_config(options.preset, {"warmup.steps": steps})) for steps in options.steps
    }

    def run(workspace: Workspace, seed: int) -> dict[str, float]:
        evaluator = Evaluator(workspace)
        space = plan(workspace.config, workspace, "1", None, limits_of(workspace.config, workspace)).space
        rng = random.Random(seed)
        task, pad_id = evaluator.task, evaluator.like.pad_token_id
        dev, split = workspace.folders.rows("dev"), workspace.folders.split("dev")

        def scored(model: PreTrainedModel) -> float:
            found = evaluate(model, dev, split, task, accelerator=evaluator.accelerator, pad_id=pad_id)
            return found[task.metrics[0]].value

        def row() -> tuple[float, float, float]:
            model = evaluator.student(space.sample(rng))
            before, losses = scored(model), list[float]()
            learned = projections(workspace.supernet)
            for training_phase in evaluator.training_phases:
                losses.clear()
                learned = evaluator.distil(model, training_phase, seed, learned, lambda step, loss: losses.append(loss))
            return before, scored(model), mean(losses[-LAST:])

        before, after, loss = (mean(column) for column in zip(*(row() for _ in range(options.candidates)), strict=True))
        return {"before": before, "after": after, "loss": loss}

    compare(settings, next(iter(settings)), run, options.seeds, None, options.out)


if __name__ == "__main__":
    main()
