"""Are the winners of a search better than each other and than plain baselines of their size, after equal training?

    python -m benchmarks winner results/demo [--steps 150] [--seeds 3]

Trains the winner of every stage, the uniform slice and the global importance allocation with the candidates' recipe for
the given number of steps, over seeds that the search did not use, and measures them on the whole dev split. All see
the same batches under one seed, so differences are taken seed by seed.
"""

import argparse
import gc
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from transformers.utils import logging

from benchmarks.measuring import error_of_mean
from distill.tasks.metrics import standard_error
from distill.training.evaluation import evaluate
from nas.budget import limits_of
from nas.config.load import load_config
from nas.evaluate import Evaluator
from nas.preparation.prepare import prepare
from nas.stages import GLOBAL, UNIFORM, plan
from nas.study.folder import STAGES, Folder
from search_spaces import cost
from search_spaces.architecture import Architecture

FIRST_SEED = 101


def trained(
    evaluator: Evaluator, models: Mapping[str, Architecture], steps: int, seeds: Iterable[int]
) -> dict[str, list[float]]:
    """Scores on the whole dev split after `steps` steps of the candidates' training with each of the seeds, by name."""
    task, pad_id = evaluator.task, evaluator.like.pad_token_id
    folders = evaluator.workspace.folders
    dev, split = folders.rows("dev"), folders.split("dev")
    *before, last = evaluator.training_phases
    training_phases = [*before, replace(last, recipe=replace(last.recipe, steps=steps))]
    scores: dict[str, list[float]] = {name: [] for name in models}
    for seed in seeds:
        known: dict[Architecture, float] = {}
        for name, architecture in models.items():
            if architecture not in known:
                model = evaluator.train(architecture, training_phases, seed)
                found = evaluate(model, dev, split, task, accelerator=evaluator.accelerator, pad_id=pad_id)
                known[architecture] = found[task.metrics[0]].value
                gc.collect()
            scores[name].append(known[architecture])
            print(f"seed {seed}  {name:<18} {scores[name][-1]:.4f}", flush=True)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the winner of a search with baselines of its size.")
    parser.add_argument("study", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the scores here too")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    config = load_config(str(options.study / "config.toml"))
    workspace = prepare(config)
    evaluator = Evaluator(workspace)
    baselines = {name: one for one, name, _ in plan(config, workspace, "1", None, limits_of(config, workspace)).starts}
    folder = Folder(options.study)
    bests = {stage: json.loads(folder.best(stage).read_text()) for stage in STAGES if folder.best(stage).exists()}
    models = {
        f"winner of {stage}": Architecture.from_json(best["winner"]["architecture"]) for stage, best in bests.items()
    } | {name: baselines[name] for name in (UNIFORM, GLOBAL)}
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    scores = trained(evaluator, models, options.steps, seeds)
    rows = len(workspace.folders.rows("dev"))
    print(f"\n{config.task}, {options.steps} steps, {rows} dev rows, seeds {seeds.start} to {seeds.stop - 1}")
    for name, values in scores.items():
        spread = f"{stdev(values):.4f}" if len(values) > 1 else "-"
        params = cost.params(models[name], workspace.labels, evaluator.task.kind)
        binomial = standard_error(mean(values), rows)
        print(
            f"{name:<18} mean {mean(values):.4f}  deviation over seeds {spread}  binomial ± {binomial:.4f}  "
            f"{params:,} parameters"
        )
    for left, right in itertools.combinations(models, 2):
        gains = [a - b for a, b in zip(scores[left], scores[right], strict=True)]
        by_seed = ", ".join(f"{gain:+.4f}" for gain in gains)
        print(f"{left} - {right}: {mean(gains):+.4f} ± {error_of_mean(gains):.4f}  (seed by seed: {by_seed})")
    if options.json:
        options.json.write_text(json.dumps({"steps": options.steps, "scores": scores}, indent=2) + "\n")


if __name__ == "__main__":
    main()
