"""Measures what the order of the supernet's channels and compensated inheritance are worth: the scores of the same
architectures with every combination of both, before training and after different numbers of steps.

The architectures have one block of the base graph in every layer and a fixed fraction of the base model's inner
neurons, either the same number in every layer or as many as the global importance allocation gives it. All are trained
as the search trains candidates, on the same batches for all settings of a seed. The difference is to slices in the
order of importance, architecture by architecture and seed by seed. What the file of raw numbers has already is not
measured again.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from benchmarks.candidates import phases_of
from benchmarks.common import Kept, Report, difference, timed
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
Row = dict[str, Any]


def architectures(workspace: Workspace, budgets: list[int]) -> dict[tuple[int, str], Architecture]:
    """The uniform and the globally allocated architecture with an n-th of the inner neurons, for every n."""
    base, graph = workspace.base()
    layers = Architecture.uniform(base, graph=graph).ffns
    result = {}
    for budget in budgets:
        widths = {
            ALLOCATIONS[0]: [base.inner // budget] * base.depth,
            ALLOCATIONS[1]: allocate_by_importance(workspace.importance(), base.depth * base.inner // budget),
        }
        for name, chosen in widths.items():
            pairs = zip(layers, chosen, strict=True)
            sized = (replace(ffn, expansion=Fraction(width, base.inner)) for ffn, width in pairs)
            result[budget, name] = Architecture.of_ffns(base, tuple(sized))
    return result


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo-ffn", help="preset or .toml file; default: %(default)s")
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
    given = {"data": options.data, "tasks": options.task and [options.task]}
    changes = {place: value for place, value in given.items() if value}
    config = load_config(options.preset, changes)
    seeds = [*options.supernets, *options.seeds]
    kept = Kept(report, {"config": config.model_dump(mode="json"), "device": options.device}, seeds)
    for supernet, order, inheritance in product(options.supernets, options.orders, INHERITANCES):
        # Untrained scores do not depend on the seed of the training.
        wanted = {
            name_of(budget, allocation, (order, inheritance), steps, supernet, seed): (budget, allocation, steps, seed)
            for budget, allocation, steps in product(options.budgets, ALLOCATIONS, options.steps)
            for seed in (options.seeds if steps else options.seeds[:1])
        }
        if wanted.keys() <= kept.measured.keys():
            continue
        setting = {"supernet.order": order, "supernet.inheritance": inheritance, "seed": supernet}
        workspace = prepare(load_config(options.preset, changes | setting), options.device, outputs=False)
        evaluator = TrainedEvaluator(workspace, options.device)
        of_budgets = architectures(workspace, options.budgets)
        for name, (budget, allocation, steps, seed) in wanted.items():
            kept(name, partial(measured, evaluator, of_budgets[budget, allocation], steps, seed))
    show(kept.measured, options, report)


def name_of(budget: int, allocation: str, setting: tuple[str, str], steps: int, supernet: int, seed: int) -> str:
    """The name of a measurement in the file; untrained ones have no seed."""
    text = f"1/{budget}, {allocation}, {', '.join(setting)}, supernet {supernet}, {steps} steps"
    return f"{text}, seed {seed}" if steps else text


def measured(evaluator: TrainedEvaluator, architecture: Architecture, steps: int, seed: int) -> Row:
    """The score of an architecture after its training, and what it took."""
    model, inheriting = timed(lambda: evaluator.student(architecture))
    training = 0.0
    if steps:
        _, training = timed(lambda: evaluator.train(model, phases_of(evaluator, steps), seed))
    score, scoring = timed(lambda: evaluator.score(model))
    return {
        "widths": [ffn.inner(architecture.base) for ffn in architecture.ffns],
        "score": score.value,
        "standard_error": score.standard_error,
        "seconds": {"inheriting": inheriting, "training": training, "scoring": scoring},
    }


def show(measured: dict[str, Row], options: Namespace, report: Report) -> None:
    """Print the scores, and the seconds of each part."""

    def rows_of(budget: int, allocation: str, setting: tuple[str, str], steps: int) -> list[Row]:
        pairs = product(options.supernets, options.seeds if steps else options.seeds[:1])
        names = (name_of(budget, allocation, setting, steps, *pair) for pair in pairs)
        return [measured[name] for name in names if name in measured]

    report.table(
        ["budget", "allocation", "order", "inheritance", *(f"{steps} steps" for steps in options.steps)],
        [
            [f"1/{budget}", allocation, order, inheritance]
            + [cell(rows_of, budget, allocation, (order, inheritance), steps) for steps in options.steps]
            for budget, allocation in product(options.budgets, ALLOCATIONS)
            for order, inheritance in product(options.orders, INHERITANCES)
        ],
    )
    settings = list(product(options.budgets, ALLOCATIONS, options.orders))
    for part in ("inheriting", "training", "scoring"):
        times = []
        for way, steps in product(INHERITANCES, options.steps):
            rows = [row for n, name, order in settings for row in rows_of(n, name, (order, way), steps)]
            times.append(f"{way}, {steps} steps {mean(row['seconds'][part] for row in rows):.2f}")
        report.note(f"seconds of {part}: {'; '.join(times)}")


def cell(
    rows_of: Callable[[int, str, tuple[str, str], int], Sequence[Row]],
    budget: int,
    allocation: str,
    setting: tuple[str, str],
    steps: int,
) -> str:
    """The mean score over the seeds of supernets and of trainings, and its mean difference to the baseline with the
    standard error of that.
    """
    own, plain = ([row["score"] for row in rows_of(budget, allocation, one, steps)] for one in (setting, BASELINE))
    text = f"{mean(own):.4f}"
    if setting == BASELINE or not plain:
        return text
    lead = difference(own, plain)
    return f"{text} ({lead.with_error(4, '+') if len(own) > 1 else f'{lead.mean:+.4f}'})"
