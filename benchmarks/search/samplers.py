"""How many evaluations the samplers need on the tabulated space.

A sampler's search is an Optuna study in memory, one trial after the other, whose scores are those of the table (see
`tabulate`). Samplers get the zero-cost proxy that a search gives them: the share of the supernet's neuron importance
that an architecture keeps. The table counts evaluations until the first architecture of the best 1 %; the drawing shows
the best score so far. With --ablation the parts of `lanas` take the place of the samplers. Constants of samplers were
chosen on other seeds, from 1,000 on.
"""

import random
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import optuna
from scipy.stats import kendalltau

from benchmarks.measuring import summarise
from benchmarks.report import Report
from benchmarks.search.table import LABELS, Table, load
from nas.samplers import SAMPLERS, Proposer, ZeroCostProxy
from nas.samplers.lanas import N_STARTUP_TRIALS, LaNAS
from nas.samplers.lanas_published import PublishedLaNAS
from nas.study import ledger
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

SEEDS = 100
# A search ends when it has found a good architecture, but after at least and at most these numbers of evaluations.
MIN_EVALUATIONS, MAX_EVALUATIONS = 60, 300
# Makes a sampler from the space, the seed and the proxy, as the values of `SAMPLERS` do.
MakeSampler = Callable[[Space, int, ZeroCostProxy], Proposer]


def search(table: Table, sampler: MakeSampler, seed: int) -> list[float]:
    """The scores of the architectures that a sampler proposes, in order."""
    study = optuna.create_study(direction="maximize", sampler=sampler(table.space, seed, table.proxy))
    scores: list[float] = []
    while len(scores) < MIN_EVALUATIONS or (max(scores) < table.good and len(scores) < MAX_EVALUATIONS):
        trial, architecture = ledger.ask(study, table.space, "benchmark", LABELS)
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


class Plain(LaNAS):
    """The tree of classifiers alone: choices as numbers, and random members of the leaf."""

    def __init__(self, space: Space, seed: int, proxy: ZeroCostProxy) -> None:
        super().__init__(space, seed)

    def features(self, architectures: Sequence[Architecture]) -> np.ndarray:
        places = {expansion: place for place, expansion in enumerate(self.space.expansions)}
        return np.array([[places[genes.expansion] for genes in one.layers] for one in architectures], dtype=float)

    def candidates(self, best: list[Architecture], rng: random.Random) -> Iterator[Architecture]:
        for _ in range(100):
            yield self.space.sample(rng)

    def order(self, new: np.ndarray, features: np.ndarray, values: np.ndarray) -> Iterable[int]:
        return range(len(new))


class Encoded(Plain):
    """With the encoding of the widths."""

    features = LaNAS.features


class Mutated(Encoded):
    """With neighbours of the leaf's best architectures too."""

    def candidates(self, best: list[Architecture], rng: random.Random) -> Iterator[Architecture]:
        candidates = list(LaNAS.candidates(self, best, rng))
        rng.shuffle(candidates)
        yield from candidates


ABLATION: dict[str, MakeSampler] = {
    "lanas-published": PublishedLaNAS,
    "tree of classifiers": Plain,
    "+ encoding": Encoded,
    "+ mutation": Mutated,
    "+ surrogate": lambda space, seed, proxy: LaNAS(space, seed),
    "+ importance": lambda space, seed, proxy: LaNAS(space, seed, proxy, first_random=N_STARTUP_TRIALS),
    "+ two random proposals, not five (lanas)": LaNAS,
    "lanas without the tree": lambda space, seed, proxy: LaNAS(space, seed, proxy, leaf_size=MAX_EVALUATIONS),
}


def draw(path: Path, curves: Mapping[str, np.ndarray], good: float) -> None:
    """Draw the mean best score so far of every sampler, with its standard error.

    Args:
        curves: (searches, evaluations), by sampler.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    evaluations = np.arange(1, MIN_EVALUATIONS + 1)
    for name, best in curves.items():
        mean, error = best.mean(axis=0), best.std(axis=0, ddof=1) / len(best) ** 0.5
        axes.plot(evaluations, mean, label=name)
        axes.fill_between(evaluations, mean - error, mean + error, alpha=0.2)
    axes.axhline(good, color="black", linewidth=0.8, linestyle="dotted", label="best 1 %")
    axes.set(xlabel="evaluations", ylabel=f"best score so far, mean of {len(best)} searches")
    axes.legend()
    figure.savefig(path, dpi=120)


def describe(report: Report, table: Table) -> None:
    """Print what the table has, and what the proxy alone would find."""
    highest = max(table.scores.values())
    report.note(f"{len(table.scores):,} architectures, scores up to {highest:.4f}, best 1 % from {table.good:.4f}")
    kept = {architecture: table.proxy(architecture) for architecture in table.scores}
    tau = kendalltau(list(kept.values()), list(table.scores.values())).statistic
    first = [table.scores[architecture] for architecture in sorted(kept, key=lambda one: -kept[one])[:5]]
    report.note(f"importance kept: tau {tau:.2f}; the five that keep most score {min(first):.4f} to {max(first):.4f}\n")


def add_options(parser: ArgumentParser) -> None:
    # A sampler for two goals cannot be compared on one score.
    names = [name for name, kind in SAMPLERS.items() if 1 in kind.n_objectives]
    parser.add_argument("--samplers", nargs="+", default=names, choices=names, help="default: all for one goal")
    parser.add_argument("--ablation", action="store_true", help="the parts of lanas in place of the samplers")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="searches of each sampler; default: %(default)s")
    parser.add_argument("--first-seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the best scores so far")


def run(options: Namespace, report: Report) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    table = load()
    describe(report, table)
    chosen: Mapping[str, MakeSampler] = {name: SAMPLERS[name] for name in options.samplers}
    samplers = ABLATION if options.ablation else chosen
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows, curves, results = [], {}, {}
    for name, sampler in samplers.items():
        searches = [search(table, sampler, seed) for seed in seeds]
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
        draw(options.plot, curves, table.good)
