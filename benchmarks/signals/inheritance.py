"""Measures what the order of the supernet's channels and compensated inheritance are worth: the scores of the same
architectures with every combination of both, before training and after different numbers of steps.

The architectures have one block of the base graph in every layer and a fixed share of the base model's inner neurons,
either the same number in every layer or as many as the global importance allocation gives it. All are trained as the
search trains candidates, on the same batches for all settings of a seed. The difference is to slices in the order of
importance, architecture by architecture and seed by seed.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from statistics import mean, stdev
from typing import Any

from benchmarks.report import Report, read_results
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from search_spaces.architecture import Architecture
from supernet.order.importance import allocate_by_importance
from supernet.order.orders import ORDERS

INHERITANCES = ("sliced", "compensated")
BASELINE = ("importance", "sliced")
ALLOCATIONS = ("uniform", "global importance")
# What a line of progress says of a measurement.
SHOWN = ("supernet", "order", "inheritance", "budget", "allocation", "steps", "score")
Row = dict[str, Any]


def architectures(workspace: Workspace, budgets: list[int]) -> dict[tuple[int, str], Architecture]:
    """The uniform and the globally allocated architecture with an n-th of the inner neurons, for every n."""
    base, graph = workspace.base()
    found = {}
    for budget in budgets:
        widths = {
            ALLOCATIONS[0]: [base.inner // budget] * base.depth,
            ALLOCATIONS[1]: allocate_by_importance(workspace.importance(), base.depth * base.inner // budget),
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
    parser.add_argument("--task", help="default: the preset's first")
    parser.add_argument("--data", help="folder of the task's official files")
    parser.add_argument("--orders", nargs="+", choices=list(ORDERS), default=["importance", "reconstruction"])
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 16, 32], help="n of 1/n; default: 8 16 32")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 60], help="of the training; default: 0 60")
    parser.add_argument(
        "--supernets", type=int, nargs="+", default=[0], help="seeds of teacher and supernet; default: 0"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the training; default: 0 1 2")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])


def run(options: Namespace, report: Report) -> None:
    rows: list[Row] = read_results(report.path, "inheritance")["results"] if report.path.exists() else []
    settings = product(options.supernets, options.orders, INHERITANCES, options.steps)
    for supernet, order, inheritance, steps in settings:
        setting = {"supernet": supernet, "order": order, "inheritance": inheritance, "steps": steps}
        # Untrained scores do not depend on the seed of the training.
        seeds = options.seeds if steps else options.seeds[:1]
        wanted = [
            setting | {"budget": budget, "allocation": allocation, "seed": seed}
            for budget, allocation, seed in product(options.budgets, ALLOCATIONS, seeds)
        ]
        if all(any(row.items() >= key.items() for row in rows) for key in wanted):
            continue
        changes = {
            "supernet.order": order,
            "supernet.inheritance": inheritance,
            # With 0 steps the phase is left out, so the candidate is scored as it was inherited.
            "candidate.steps": steps,
            "seed": supernet,
            "data": options.data,
            "tasks": options.task and [options.task],
        }
        config = load_config(options.preset, {place: value for place, value in changes.items() if value is not None})
        evaluator = TrainedEvaluator(prepare(config, options.device), options.device)
        of_budgets = architectures(evaluator.workspace, options.budgets)
        for key in wanted:
            if not any(row.items() >= key.items() for row in rows):
                rows.append(key | measured(evaluator, of_budgets[key["budget"], key["allocation"]], key["seed"]))
                report.save(rows, seeds=[*options.supernets, *options.seeds])
                report.progress(
                    ", ".join(f"{name} {value}" for name, value in (key | rows[-1]).items() if name in SHOWN)
                )
    show(rows, options, report)


def measured(evaluator: TrainedEvaluator, architecture: Architecture, seed: int) -> Row:
    """The score of an architecture after its training, and what it took."""
    started = time.perf_counter()
    model = evaluator.student(architecture)
    inherited = time.perf_counter()
    evaluator.train(model, evaluator.training_phases, seed)
    trained = time.perf_counter()
    score = evaluator.score(model)
    return {
        "widths": [genes.inner(architecture.base) for genes in architecture.layers],
        "score": score.value,
        "standard_error": score.standard_error,
        "seconds": {
            "inheriting": inherited - started,
            "training": trained - inherited,
            "scoring": time.perf_counter() - trained,
        },
    }


def show(rows: Sequence[Row], options: Namespace, report: Report) -> None:
    """Print the scores, and the seconds of each part."""
    report.table(
        ["budget", "allocation", "order", "inheritance", *(f"{steps} steps" for steps in options.steps)],
        [
            [f"1/{budget}", allocation, order, inheritance]
            + [cell(rows, budget, allocation, (order, inheritance), steps) for steps in options.steps]
            for budget, allocation in product(options.budgets, ALLOCATIONS)
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


def cell(rows: Sequence[Row], budget: int, allocation: str, setting: tuple[str, str], steps: int) -> str:
    """The mean score over the seeds of supernets and of trainings, and its mean difference to the baseline with the
    standard error of that.
    """

    def scores(of: tuple[str, str]) -> dict[tuple[int, int], float]:
        wanted = (budget, allocation, *of, steps)
        keys = ("budget", "allocation", "order", "inheritance", "steps")
        return {
            (row["supernet"], row["seed"]): row["score"] for row in rows if tuple(row[key] for key in keys) == wanted
        }

    found, plain = scores(setting), scores(BASELINE)
    text = f"{mean(found.values()):.4f}"
    if setting == BASELINE or not plain:
        return text
    differences = [found[seed] - plain[seed] for seed in found]
    error = f" ± {stdev(differences) / len(differences) ** 0.5:.4f}" if len(differences) > 1 else ""
    return f"{text} ({mean(differences):+.4f}{error})"
