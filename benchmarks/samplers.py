"""How many evaluations the samplers need on a tabulated space.

A sampler's search is an Optuna study in memory, one trial after the other, whose scores are those of the table (see
`tabulated`). Samplers get what a search gives them as a zero-cost proxy: the fraction of the supernet's neuron
importance that an architecture keeps, or its negative predicted loss. The report's table counts evaluations until the
first architecture of the best 1 %; the drawing shows the best score so far. Constants of samplers were chosen on other
seeds, from 1,000 on.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from scipy.stats import kendalltau

from benchmarks.common import BenchmarkError, Report, summarise
from benchmarks.tabulated import LAYERS, SPACES, TRAINED, Table, load
from nas.planning.allocation import allocate
from nas.report import figures
from nas.samplers import SAMPLERS
from nas.study import ledger

SEEDS = 100
MILP = "milp"
# A search ends when it has found a good architecture, but after at least and at most these numbers of evaluations.
MIN_EVALUATIONS, MAX_EVALUATIONS = 60, 300


def search(table: Table, sampler: str, seed: int) -> list[float]:
    """The scores of the architectures that the sampler of this name proposes, in order."""
    settings: dict[str, Any] = {}
    if sampler == MILP and (losses := table.losses):
        settings = {
            "losses": losses.of_parts,
            "allocate": lambda weights: allocate(table.space, losses.weighted(weights)),
        }
    proposer = SAMPLERS[sampler](table.space, seed, table.proxy, **settings)
    study = optuna.create_study(direction="maximize", sampler=proposer)
    scores: list[float] = []
    while len(scores) < MIN_EVALUATIONS or (max(scores) < table.good and len(scores) < MAX_EVALUATIONS):
        trial, architecture = ledger.ask(study, table.space, "benchmark")
        scores.append(table.scores[architecture])
        ledger.complete(study, trial.number, scores[-1], {})
    return scores


def evaluations_until_good(table: Table, scores: Sequence[float]) -> int:
    """The number of evaluations up to the first good architecture; MAX_EVALUATIONS if there is none."""
    return next((number for number, score in enumerate(scores, 1) if score >= table.good), MAX_EVALUATIONS)


def improvements(scores: Sequence[float]) -> list[tuple[int, float]]:
    """Every score that is above all before it, with the number of evaluations that it took."""
    best = np.maximum.accumulate(scores)
    rises = [0, *(np.flatnonzero(np.diff(best)) + 1)]
    return [(int(place) + 1, round(float(best[place]), 6)) for place in rises]


def draw(path: Path, curves: Mapping[str, np.ndarray], good: float) -> None:
    """Draw the mean best score so far of every sampler, with its standard error.

    Args:
        curves: (searches, evaluations), by sampler.
    """
    drawn = figures.figure(7, 4.5)
    axes = drawn.subplots()
    evaluations = np.arange(1, MIN_EVALUATIONS + 1)
    for name, best in curves.items():
        mean, error = best.mean(axis=0), best.std(axis=0, ddof=1) / len(best) ** 0.5
        axes.plot(evaluations, mean, label=name)
        axes.fill_between(evaluations, mean - error, mean + error, alpha=0.2)
    axes.axhline(good, color="black", linewidth=0.8, linestyle="dotted", label="best 1 %")
    axes.set(xlabel="evaluations", ylabel=f"best score so far, mean of {len(best)} searches")
    axes.legend()
    figures.write(drawn, path)


def describe(report: Report, table: Table) -> None:
    """Print what the table has, and what the proxy alone would find."""
    highest = max(table.scores.values())
    report.note(f"{len(table.scores):,} architectures, scores up to {highest:.4f}, best 1 % from {table.good:.4f}")
    kept = {architecture: table.proxy(architecture) for architecture in table.scores}
    tau = kendalltau(list(kept.values()), list(table.scores.values())).statistic
    first = [table.scores[architecture] for architecture in sorted(kept, key=lambda one: -kept[one])[:5]]
    report.note(
        f"zero-cost proxy: tau {tau:.2f}; the five that it ranks first score {min(first):.4f} to {max(first):.4f}"
    )
    trained = [(score, value) for one, score in table.scores.items() if (value := table.query(one).get(TRAINED))]
    if trained:
        tau = kendalltau(*zip(*trained, strict=True)).statistic
        report.note(f"score and accuracy after training: tau {tau:.2f}, of {len(trained)} architectures")


def add_options(parser: ArgumentParser) -> None:
    # A sampler for two goals cannot be compared on one score.
    names = [name for name, kind in SAMPLERS.items() if 1 in kind.n_objectives]
    parser.add_argument("--space", choices=SPACES, default=LAYERS, help="default: %(default)s")
    parser.add_argument("--samplers", nargs="+", choices=names, help="default: all for one goal that the table allows")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="searches of each sampler; default: %(default)s")
    parser.add_argument("--first-seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the best scores so far")


def run(options: Namespace, report: Report) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    table = load(options.space)
    if table.losses is None and MILP in (options.samplers or ()):
        raise BenchmarkError(
            f"--samplers: {MILP} needs predicted losses, which the table of {options.space} does not have"
        )
    names = [name for name, kind in SAMPLERS.items() if 1 in kind.n_objectives and (table.losses or name != MILP)]
    describe(report, table)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows, curves, results = [], {}, {}
    for name in options.samplers or names:
        searches = [search(table, name, seed) for seed in seeds]
        counts = [evaluations_until_good(table, scores) for scores in searches]
        curves[name] = np.array([np.maximum.accumulate(scores[:MIN_EVALUATIONS]) for scores in searches])
        results[name] = {
            "evaluations until good": counts,
            "evaluations and scores of improvements": [improvements(scores) for scores in searches],
        }
        summary = summarise(counts)
        cells = (
            f"{summary.mean:.1f}",
            f"{summary.error:.1f}",
            f"{summary.median:.0f}",
            f"{np.percentile(counts, 90):.0f}",
        )
        rows.append((name, *cells))
        report.progress(f"{name}: {cells[0]} evaluations")
        report.save(results, seeds=seeds)
    report.table(("sampler", "mean", "standard error", "median", "90th percentile"), rows)
    if options.plot:
        with figures.styled():
            draw(options.plot, curves, table.good)
