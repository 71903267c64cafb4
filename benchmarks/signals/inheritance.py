"""Measures what the order of the supernet's channels and compensated inheritance are worth: the scores of the same
architectures with every combination of both, before training and after different numbers of steps.

The architectures have one block of the base graph in every layer and a fixed share of the base model's inner neurons,
either the same number in every layer or as many as the global importance allocation gives it. All are trained as the
search trains candidates, on the same batches for all settings of a seed. The difference is to slices in the order of
importance, architecture by architecture and seed by seed.
"""

import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from fractions import Fraction
from itertools import product
from statistics import mean, stdev
from typing import Any

from benchmarks.report import Report
from nas.config.load import load_config
from nas.evaluate import Evaluator
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from search_spaces.architecture import Architecture
from supernet.order.importance import allocate
from supernet.order.orders import ORDERS

INHERITANCES = ("sliced", "compensated")
BASELINE = ("importance", "sliced")


def architectures(workspace: Workspace, budgets: list[int]) -> dict[tuple[int, str], Architecture]:
    """The uniform and the globally allocated architecture with an n-th of the inner neurons, for every n."""
    base, graph = workspace.base()
    found = {}
    for budget in budgets:
        widths = {
            "uniform": [base.inner // budget] * base.depth,
            "global importance": allocate(workspace.importance(), base.depth * base.inner // budget),
        }
        for name, chosen in widths.items():
            layers = Architecture.uniform(base, graph=graph).layers
            sized = (
                replace(genes, expansion=Fraction(width, base.inner))
                for genes, width in zip(layers, chosen, strict=True)
            )
            found[budget, name] = Architecture(base, tuple(sized))
    return found


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--orders", nargs="+", choices=list(ORDERS), default=["importance", "reconstruction"])
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 16, 32], help="n of 1/n; default: 8 16 32")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 60], help="of the training; default: 0 60")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the training; default: 0 1 2")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])


def run(options: Namespace, report: Report) -> None:
    rows: list[dict[str, Any]] = []
    for (order, inheritance), steps in product(product(options.orders, INHERITANCES), options.steps):
        # With 0 steps the phase is left out, so the candidate is scored as it was inherited.
        changes = {"supernet.order": order, "supernet.inheritance": inheritance, "candidate.steps": steps}
        workspace = prepare(load_config(options.preset, changes), options.device)
        evaluator = Evaluator(workspace, options.device)
        for (budget, allocation), architecture in architectures(workspace, options.budgets).items():
            for seed in options.seeds[: None if steps else 1]:  # untrained scores do not depend on the seed
                started = time.perf_counter()
                model = evaluator.student(architecture)
                inherited = time.perf_counter()
                evaluator.train(model, evaluator.training_phases, seed)
                trained = time.perf_counter()
                score = evaluator.score(model)
                rows.append(
                    {
                        "order": order,
                        "inheritance": inheritance,
                        "budget": budget,
                        "allocation": allocation,
                        "widths": [genes.inner(architecture.base) for genes in architecture.layers],
                        "steps": steps,
                        "seed": seed,
                        "score": score.value,
                        "standard_error": score.standard_error,
                        "seconds": {
                            "inheriting": inherited - started,
                            "training": trained - inherited,
                            "scoring": time.perf_counter() - trained,
                        },
                    }
                )
                report.progress(f"{order}, {inheritance}, 1/{budget}, {allocation}, {steps} steps: {score.value:.4f}")
    report.table(
        ["budget", "allocation", "order", "inheritance", *(f"{steps} steps" for steps in options.steps)],
        [
            [f"1/{budget}", allocation, order, inheritance]
            + [cell(rows, budget, allocation, (order, inheritance), steps) for steps in options.steps]
            for budget, allocation in dict.fromkeys((row["budget"], row["allocation"]) for row in rows)
            for order, inheritance in product(options.orders, INHERITANCES)
        ],
    )
    for part in ("inheriting", "training", "scoring"):
        times = {
            f"{inheritance}, {steps} steps": mean(
                row["seconds"][part] for row in rows if row["inheritance"] == inheritance and row["steps"] == steps
            )
            for inheritance, steps in product(INHERITANCES, options.steps)
        }
        report.note(f"seconds of {part}: " + "; ".join(f"{name} {seconds:.2f}" for name, seconds in times.items()))
    report.save(rows, seeds=options.seeds)


def cell(rows: list[dict[str, Any]], budget: int, allocation: str, setting: tuple[str, str], steps: int) -> str:
    """The mean score over the seeds, and its mean difference to the baseline with the standard error of that."""

    def scores(of: tuple[str, str]) -> dict[int, float]:
        wanted = (budget, allocation, *of, steps)
        keys = ("budget", "allocation", "order", "inheritance", "steps")
        return {row["seed"]: row["score"] for row in rows if tuple(row[key] for key in keys) == wanted}

    found, plain = scores(setting), scores(BASELINE)
    text = f"{mean(found.values()):.4f}"
    if setting == BASELINE or not plain:
        return text
    differences = [found[seed] - plain[seed] for seed in found]
    error = f" ± {stdev(differences) / len(differences) ** 0.5:.4f}" if len(differences) > 1 else ""
    return f"{text} ({mean(differences):+.4f}{error})"
