"""Compares searching coarse to fine in several stages with a single search of the whole space, at equal budget.

Without --demo, the searches run on the tabulated space (see `tabulate`), which varies only sizes: a stage varies the
sizes of some layers and keeps the others. Every stage is a separate study, as in a search, and begins with the best
architecture of the stage before, or with "+ ledger" with everything that was scored. An evaluation is a look-up in the
table; architectures with which a study begins cost nothing. If stages run out of new architectures, the rest of the
budget goes to a last stage on the whole space.

With --demo, real searches are run by the command line, with their folders and their cache in OUT: first all stages;
then stage 1 alone, and stage 3 alone from the uniform slice, each with as many trials as the cost of all stages allows.
The cost is counted in seconds of workers by the ledgers, confirmations and stage 3's supernet included; texts, teachers
and the supernet of stages 1 and 2 are made in advance. The winners are trained as in `winner`. After an interruption
the same command continues; but if a search was interrupted between stages 2 and 3, the cost of stage 3's supernet is
unknown.
"""

import functools
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import optuna

from benchmarks.measuring import summarise
from benchmarks.report import Report
from benchmarks.search.coarse_to_fine_demo import on_demo
from benchmarks.search.samplers import MakeSampler
from benchmarks.search.table import LABELS, Table, load
from benchmarks.search.winner import FIRST_SEED
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.description import Parameters
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.graph import FFNGraph
from search_spaces.spaces import Space

BUDGETS = (20, 40, 60, 100)
SEEDS = 100

# Architectures that were evaluated, and their scores, in the order of evaluation.
Scores = dict[Architecture, float]


@dataclass(frozen=True)
class Narrowed(Space):
    """A space in which every layer has expansions of its own, `allowed`, among those of the space."""

    allowed: tuple[frozenset[Fraction], ...] = ()

    def options_and_costs(self, layer: int, graph: FFNGraph) -> Any:
        rows = zip(*super().options_and_costs(layer, graph), strict=True)
        options, costs = zip(*(row for row in rows if row[0].expansion in self.allowed[layer]), strict=True)
        return options, costs


@dataclass(frozen=True)
class View:
    """A sub-space, and the function that turns its members into members of the whole space."""

    space: Space
    whole: Callable[[Architecture], Architecture] = lambda architecture: architecture


# Makes what a stage searches from the whole space and the scores so far.
Stage = Callable[[Space, Scores], View]


def everything(space: Space, scores: Scores) -> View:
    """The whole space."""
    return View(space)


@functools.lru_cache(maxsize=4096)
def narrowed(space: Space, allowed: tuple[frozenset[Fraction], ...]) -> Narrowed:
    """The space with these expansions in its layers. Searches of many seeds make the same ones."""
    return Narrowed(**{name: getattr(space, name) for name in space.__dataclass_fields__}, allowed=allowed)


def second_sizes(space: Space, scores: Scores) -> View:
    """Every second expansion, from the largest on."""
    return View(replace(space, expansions=tuple(sorted(space.expansions)[::-2])))


def pairs(space: Space, scores: Scores) -> View:
    """Pairs of equal layers: a space of half as many layers, each with two blocks, which cost as much as two layers."""
    base = replace(space.base, depth=space.base.depth // 2)
    less = cost.fixed_params(space.base, space.labels) - cost.fixed_params(base, space.labels)
    halved = replace(
        space,
        base=base,
        stacks=(2,),
        min_params=space.min_params - less,
        max_params=space.max_params - less,
        start=Architecture.uniform(base, space.graph),
    )

    def whole(architecture: Architecture) -> Architecture:
        layers = (replace(genes, stack=1) for genes in architecture.layers for _ in range(2))
        return Architecture(space.base, tuple(layers))

    return View(halved, whole)


def near(space: Space, scores: Scores) -> View:
    """Every layer's expansion within one step of the best architecture's."""
    sizes = sorted(space.expansions)
    places = [sizes.index(genes.expansion) for genes in best(scores).layers]
    return View(narrowed(space, tuple(frozenset(sizes[max(0, place - 1) : place + 2]) for place in places)))


def lower(space: Space, scores: Scores) -> View:
    """The lower half of the layers; the upper ones are the best architecture's."""
    return _half(space, scores, range(space.base.depth // 2))


def upper(space: Space, scores: Scores) -> View:
    """The upper half of the layers."""
    return _half(space, scores, range(space.base.depth // 2, space.base.depth))


def _half(space: Space, scores: Scores, free: Sequence[int]) -> View:
    layers = enumerate(best(scores).layers)
    free_sizes = frozenset(space.expansions)
    allowed = (free_sizes if place in free else frozenset({genes.expansion}) for place, genes in layers)
    return View(narrowed(space, tuple(allowed)))


def best(scores: Scores) -> Architecture:
    """The first architecture with the highest score."""
    return max(scores, key=scores.__getitem__)


# Stages and their shares of the budget. The last scheme is how the stages of a search go: all genes at once, then one
# group of them with the others fixed, then the other group.
SCHEMES: dict[str, tuple[tuple[Stage, float], ...]] = {
    "single stage": ((everything, 1.0),),
    "every second size, then near": ((second_sizes, 0.5), (near, 0.5)),
    "pairs of layers, then near": ((pairs, 0.5), (near, 0.5)),
    "all, then lower, then upper layers": ((everything, 0.5), (lower, 0.25), (upper, 0.25)),
}


def run_stage(table: Table, view: View, sampler: MakeSampler, seed: int, known: Scores, budget: int) -> Scores:
    """The scores of the architectures that a study evaluates, without the known ones with which it begins; fewer than
    the budget if there are no new architectures left.
    """
    proposer = sampler(view.space, seed, lambda architecture: table.proxy(view.whole(architecture)))
    study = optuna.create_study(direction="maximize", sampler=proposer)
    for architecture in known:
        ledger.enqueue(study, Parameters.of(view.space), architecture, "known")
    evaluated: dict[Architecture, Architecture] = {}
    for _ in range(len(known) + budget):
        trial, member = ledger.ask(study, view.space, "benchmark", LABELS)
        if member in evaluated:
            break
        evaluated[member] = view.whole(member)
        ledger.complete(study, trial.number, table.scores[evaluated[member]], {})
    return {architecture: table.scores[architecture] for architecture in list(evaluated.values())[len(known) :]}


def search(
    table: Table,
    stages: Sequence[tuple[Stage, float]],
    sampler: MakeSampler,
    seed: int,
    budget: int,
    memory: bool,
    first: Scores,
) -> float:
    """The best score of the stages with so many evaluations.

    Args:
        memory: whether a stage knows all evaluations before it, or only the best one.
        first: what the first stage evaluates with its share of the budget or more.
    """
    share = stages[0][1]
    scores = dict(islice(first.items(), round(share * budget)))
    spent = len(scores)
    for stage, stage_share in (*stages[1:], (everything, 0.0)):
        share += stage_share
        if left := round(share * budget) - spent:
            known = scores if memory else {best(scores): scores[best(scores)]}
            new = run_stage(table, stage(table.space, scores), sampler, seed, known, left)
            scores = scores | new
            spent += len(new)
    return max(scores.values())


def searches(table: Table, sampler: MakeSampler, seed: int) -> dict[str, list[float]]:
    """For every scheme the best score of one search with each of the budgets."""
    begun: dict[Stage, Scores] = {}
    result = {}
    for scheme, stages in SCHEMES.items():
        first = stages[0][0]
        if first not in begun:
            begun[first] = run_stage(table, first(table.space, {}), sampler, seed, {}, BUDGETS[-1])
        for memory in (False, True)[: len(stages)]:
            result[scheme + " + ledger" * memory] = [
                search(table, stages, sampler, seed, budget, memory, begun[first]) for budget in BUDGETS
            ]
    return result


def on_table(names: Sequence[str], seeds: Sequence[int], report: Report) -> None:
    """Compare all schemes on the tabulated space."""
    table = load()
    highest = max(table.scores.values())
    report.note(f"{len(table.scores):,} architectures, scores up to {highest:.4f}, best 1 % from {table.good:.4f}\n")
    rows, results = [], {}
    for name in names:
        of_seeds = [searches(table, SAMPLERS[name], seed) for seed in seeds]
        results[name] = {scheme: [scores[scheme] for scores in of_seeds] for scheme in of_seeds[0]}
        for scheme, by_seed in results[name].items():
            columns = zip(*by_seed, strict=True)
            rows.append((name, scheme, *(summary(scores, table.good) for scores in columns)))
        report.progress(f"{name}: done")
        report.save({"budgets": BUDGETS, "best scores": results}, seeds=seeds)
    report.table(("sampler", "scheme", *(f"{budget} evaluations" for budget in BUDGETS)), rows)


def summary(scores: Sequence[float], good: float) -> str:
    """Mean and standard error of the best scores, and the share of those among the good ones."""
    return f"{summarise(scores).with_error(4)}, {mean(score >= good for score in scores):.0%}"


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--samplers", nargs="+", default=["lanas", "evolution", "random"], choices=SAMPLERS)
    parser.add_argument("--seeds", type=int, help=f"on the table: searches (default {SEEDS}); with --demo: trainings")
    parser.add_argument("--demo", type=Path, metavar="OUT", help="real searches, in this folder")
    parser.add_argument("--preset", default="demo", help="of the real searches; default: %(default)s")
    parser.add_argument("--searches", type=int, default=3, help="seeds of the real searches, from 0 on; default: 3")
    parser.add_argument("--steps", type=int, default=150, help="of the winners' trainings; default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if options.demo:
        seeds = range(FIRST_SEED, FIRST_SEED + (options.seeds or 3))
        on_demo(options.demo, options.preset, options.searches, options.steps, seeds, report)
    else:
        on_table(options.samplers, range(options.seeds or SEEDS), report)
