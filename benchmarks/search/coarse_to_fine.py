"""Searching coarsely first and finely then, against one search of everything, at equal budget.

    python -m benchmarks coarse_to_fine [--samplers lanas evolution random] [--seeds 100]
    python -m benchmarks coarse_to_fine --demo OUT [--preset demo] [--searches 3] [--steps 150] [--seeds 3]

Without `--demo` on the table of `tabulate`, which has sizes alone: what a stage varies and what it keeps are
layers' sizes. A stage is a study of its own, as in a search, that begins with the best architecture of the stage
before; with "+ ledger" it begins with all that was scored. An evaluation is one look-up; what a study begins with costs
nothing. What stages leave of the budget, as they have nothing new any more, goes to a last stage of everything.

With `--demo`, real searches by the command line, their folders and their cache in OUT: all stages; then stage 1 alone
and stage 3 alone (from the uniform slice), with as many trials as cost what all stages did, in seconds of workers by
their ledgers, confirmations and stage 3's supernet included. Texts, teachers and the supernet of stages 1 and 2 are
there before. The winners are trained as `winner` does. Interrupted, the same command goes on; but what stage
3's supernet took is not known where it was interrupted between the stages 2 and 3 of a search.
"""

import argparse
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from benchmarks.measuring import error_of_mean
from benchmarks.search.samplers import LABELS, MakeSampler, Table, load
from benchmarks.search.winner import FIRST_SEED, trained
from nas.budget import limits_of
from nas.config.load import load_config
from nas.evaluate import Evaluator
from nas.preparation.prepare import Preparation, prepare
from nas.samplers import SAMPLERS
from nas.stages import UNIFORM, plan
from nas.study import ledger
from nas.study.folder import Folder
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.graph import FFNGraph
from search_spaces.spaces import Space

BUDGETS = (20, 40, 60, 100)
SEEDS = 100
COARSE_TO_FINE, STAGE_1, STAGE_3 = "all", "1", "3"

# Architectures that were evaluated, and their scores, in order.
Found = dict[Architecture, float]


@dataclass(frozen=True)
class Narrowed(Space):
    """A space in which every layer has expansions of its own, `allowed`, among those of the space."""

    allowed: tuple[frozenset[Fraction], ...] = ()

    def _menu(self, place: int, graph: FFNGraph) -> Any:
        rows = zip(*super()._menu(place, graph), strict=True)
        options, costs = zip(*(row for row in rows if row[0].expansion in self.allowed[place]), strict=True)
        return options, costs


@dataclass(frozen=True)
class View:
    """A sub-space, and what each of its members is in the whole space."""

    space: Space
    whole: Callable[[Architecture], Architecture] = lambda architecture: architecture


# The whole space and what was found so far -> what a stage searches.
Stage = Callable[[Space, Found], View]


def everything(space: Space, found: Found) -> View:
    """The whole space."""
    return View(space)


@functools.lru_cache(maxsize=4096)
def narrowed(space: Space, allowed: tuple[frozenset[Fraction], ...]) -> Narrowed:
    """The space with these expansions in its layers."""
    return Narrowed(**{name: getattr(space, name) for name in space.__dataclass_fields__}, allowed=allowed)


def second_sizes(space: Space, found: Found) -> View:
    """Every second expansion, from the largest on."""
    return View(replace(space, expansions=tuple(sorted(space.expansions)[::-2])))


def pairs(space: Space, found: Found) -> View:
    """Every two layers alike: a space of half as many layers, each of two blocks, which cost what the two layers do."""
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


def near(space: Space, found: Found) -> View:
    """Every layer's expansion within one step of the best architecture's."""
    sizes = sorted(space.expansions)
    places = [sizes.index(genes.expansion) for genes in best(found).layers]
    return View(narrowed(space, tuple(frozenset(sizes[max(0, place - 1) : place + 2]) for place in places)))


def lower(space: Space, found: Found) -> View:
    """The lower half of the layers; the upper ones are the best architecture's."""
    return _half(space, found, range(space.base.depth // 2))


def upper(space: Space, found: Found) -> View:
    """The upper half of the layers."""
    return _half(space, found, range(space.base.depth // 2, space.base.depth))


def _half(space: Space, found: Found, free: Sequence[int]) -> View:
    layers = enumerate(best(found).layers)
    free_sizes = frozenset(space.expansions)
    allowed = (free_sizes if place in free else frozenset({genes.expansion}) for place, genes in layers)
    return View(narrowed(space, tuple(allowed)))


def best(found: Found) -> Architecture:
    """The first of the highest score."""
    return max(found, key=found.__getitem__)


# Stages and their shares of the budget. The last scheme is how the stages of a search go: all genes at once, then one
# group of them with the others fixed, then the other group.
SCHEMES: dict[str, tuple[tuple[Stage, float], ...]] = {
    "single stage": ((everything, 1.0),),
    "every second size, then near": ((second_sizes, 0.5), (near, 0.5)),
    "pairs of layers, then near": ((pairs, 0.5), (near, 0.5)),
    "all, then lower, then upper layers": ((everything, 0.5), (lower, 0.25), (upper, 0.25)),
}


def run_stage(table: Table, view: View, sampler: MakeSampler, seed: int, known: Found, budget: int) -> Found:
    """What a study evaluates that begins with what is known, which is no part of the result: less than the budget where
    nothing is new any more.
    """
    hinted = sampler(view.space, seed, lambda one: table.hint(view.whole(one)))
    study = optuna.create_study(direction="maximize", sampler=hinted)
    for architecture in known:
        ledger.enqueue(study, architecture, "known")
    asked: dict[Architecture, Architecture] = {}
    for _ in range(len(known) + budget):
        trial, own = ledger.ask(study, view.space, "benchmark", LABELS)
        if own in asked:
            break
        asked[own] = view.whole(own)
        ledger.complete(study, trial.number, table.scores[asked[own]], {})
    return {architecture: table.scores[architecture] for architecture in list(asked.values())[len(known) :]}


def search(
    table: Table,
    stages: Sequence[tuple[Stage, float]],
    sampler: MakeSampler,
    seed: int,
    budget: int,
    memory: bool,
    begun: Found,
) -> float:
    """The best score that the stages find with so many evaluations. With `memory` a stage knows of all evaluations
    before it, else of the best.

    Args:
        begun: what the first stage finds with its share or more.
    """
    share = stages[0][1]
    found = dict(islice(begun.items(), round(share * budget)))
    spent = len(found)
    for stage, own in (*stages[1:], (everything, 0.0)):
        share += own
        if left := round(share * budget) - spent:
            known = found if memory else {best(found): found[best(found)]}
            new = run_stage(table, stage(table.space, found), sampler, seed, known, left)
            found = found | new
            spent += len(new)
    return max(found.values())


def searches(table: Table, sampler: MakeSampler, seed: int) -> dict[str, list[float]]:
    """For every scheme the best score of one search with each of the budgets."""
    begun: dict[Stage, Found] = {}
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


def on_table(names: Sequence[str], seeds: Sequence[int]) -> None:
    """Print the table of all schemes."""
    table = load()
    print(
        f"{len(table.scores)} architectures, scores up to {max(table.scores.values()):.4f}, best 1 % from "
        f"{table.good:.4f}; seeds {seeds[0]} to {seeds[-1]}\n"
    )
    cells = " | ".join(f"{budget} evaluations" for budget in BUDGETS)
    print(f"| sampler | scheme | {cells} |\n|---|---|{'---|' * len(BUDGETS)}")
    for name in names:
        found = [searches(table, SAMPLERS[name], seed) for seed in seeds]
        for scheme in found[0]:
            columns = zip(*(one[scheme] for one in found), strict=True)
            row = " | ".join(summary(scores, table.good) for scores in columns)
            print(f"| {name} | {scheme} | {row} |", flush=True)


def summary(scores: Sequence[float], good: float) -> str:
    """Mean and standard error of the best scores, and the share of those among the good ones."""
    return f"{mean(scores):.4f} ± {error_of_mean(list(scores)):.4f}, {mean(score >= good for score in scores):.0%}"


@dataclass(frozen=True)
class Spent:
    """Seconds of workers that a search took: the trials of each stage, the confirmations of each, and stage 3's
    supernet, for which all workers wait; and how many trials each stage ran.
    """

    trials: dict[str, int]
    stages: dict[str, float]
    confirmations: dict[str, float]
    supernet: float

    @property
    def total(self) -> float:
        return sum(self.stages.values()) + sum(self.confirmations.values()) + self.supernet

    def affordable(self, stage: str, seconds: float) -> int:
        """How many trials of a stage, with its confirmations and what it needs before, so many seconds are."""
        before = self.confirmations[stage] + (self.supernet if stage == STAGE_3 else 0.0)
        return max(1, round((seconds - before) / self.stages[stage] * self.trials[stage]))


def spent_by(storage: str, stages: Sequence[str], workers: int) -> Spent:
    """What the ledgers of a search in one piece say."""
    rows = {stage: ledger.finished(ledger.open_study(storage, f"stage-{stage}")) for stage in stages}
    confirmed = ledger.finished(ledger.open_study(storage, "confirmation"))

    def seconds(trials: Sequence[FrozenTrial]) -> float:
        return sum(trial.user_attrs.get("seconds", 0.0) for trial in trials)

    waited = 0.0
    if STAGE_3 in stages:
        begun = min(one.datetime_start for one in rows[STAGE_3] if one.datetime_start)
        ends = (one.datetime_complete for trials in (*rows.values(), confirmed) for one in trials)
        before = [end for end in ends if end and end <= begun]
        waited = (begun - max(before)).total_seconds() if before else 0.0
    return Spent(
        {stage: len(trials) for stage, trials in rows.items()},
        {stage: seconds(trials) for stage, trials in rows.items()},
        {
            stage: seconds([one for one in confirmed if one.user_attrs[ledger.ORIGIN].startswith(f"stage-{stage} ")])
            for stage in stages
        },
        workers * waited,
    )


def command(folder: Folder, preset: str, seed: int, *arguments: str) -> None:
    """A search by the command line, or the rest of it."""
    place = ("--out", str(folder.path.parent), "--study", folder.path.name)
    line = ["--preset", preset, *place, "--seed", str(seed), *arguments]
    if folder.config.exists():
        line.append("--resume")
    if subprocess.run([sys.executable, "-m", "nas.search", *line], check=False).returncode:
        sys.exit(f"python -m nas.search {' '.join(line)} ended with an error")


def winners(out: Path, preset: str, seed: int) -> tuple[dict[str, Architecture], Evaluator]:
    """The three searches of one seed, with what they cost; their winners, and what trains them."""
    config = load_config(preset, {"seed": seed})
    workspace = prepare(config)
    for task in config.tasks:  # also what only stage 3 needs
        made = Preparation(config.model_copy(update={"tasks": (task,)}))
        assert made.data.exists() and made.teacher.exists()
    workers = min(2, os.cpu_count() or 1)
    folders = {name: Folder(out / name) for name in (COARSE_TO_FINE, STAGE_1, STAGE_3)}
    if not folders[COARSE_TO_FINE].best("3").exists():
        command(folders[COARSE_TO_FINE], preset, seed, "--stage", "all")
    cost_of_all = spent_by(folders[COARSE_TO_FINE].storage, ("1", "2", "3"), workers)
    starts = plan(config, workspace, "1", None, limits_of(config, workspace)).starts
    next(one for one, name, _ in starts if name == UNIFORM).save(out / "uniform.json")
    for stage, given in ((STAGE_1, ()), (STAGE_3, ("--from", str(out / "uniform.json")))):
        if not folders[stage].best(stage).exists():
            trials = f"{cost_of_all.affordable(stage, cost_of_all.total)}"
            command(folders[stage], preset, seed, "--stage", stage, "--trials", trials, *given)
    print(f"\n| seed {seed} | candidates | seconds of workers |\n|---|---|---|")
    for name, folder in folders.items():
        stages = ("1", "2", "3") if name == COARSE_TO_FINE else (name,)
        found = spent_by(folder.storage, stages, workers)
        # Alone, stage 3 has no trial before its supernet; and it may have found the one of all stages in the cache.
        total = found.total + (cost_of_all.supernet if name == STAGE_3 else 0.0)
        print(f"| stages {name} | {' + '.join(map(str, found.trials.values()))} | {total:.0f} |", flush=True)
    best_of = {f"stages {name}": Architecture.load(folder.architecture) for name, folder in folders.items()}
    return best_of, Evaluator(workspace)


def on_demo(out: Path, preset: str, searches: int, steps: int, seeds: range) -> None:
    """Print what the winners of all searches are worth, and their differences search by search."""
    os.environ["FFN_NAS_CACHE"] = str((out / "cache").resolve())
    rows: list[dict[str, float]] = []
    for seed in range(searches):
        models, evaluator = winners(out / f"seed-{seed}", preset, seed)
        scores = trained(evaluator, models, steps, seeds)
        rows.append({name: mean(values) for name, values in scores.items()})
    print(f"\n{steps} steps, whole dev split, mean of seeds {seeds[0]} to {seeds[-1]}\n")
    print(differences(rows))


def differences(rows: Sequence[Mapping[str, float]]) -> str:
    """A table of scores, a row for each search, and of how far the first one's are above the others'."""
    first, *others = rows[0]
    above = [f"{first} - {other}" for other in others]
    lines = [f"| seed | {' | '.join([first, *others, *above])} |", "|---" * (2 + len(others) * 2) + "|"]
    table = [[*row.values(), *(row[first] - row[other] for other in others)] for row in rows]
    split = 1 + len(others)
    for seed, values in enumerate(table):
        shown = [f"{value:.4f}" for value in values[:split]] + [f"{value:+.4f}" for value in values[split:]]
        lines.append(f"| {seed} | {' | '.join(shown)} |")
    if len(table) == 1:  # of one search there is no error
        return "\n".join(lines)
    columns = np.array(table).T.tolist()
    means = [f"{mean(column):{'.4f' if place < split else '+.4f'}}" for place, column in enumerate(columns)]
    errors = [f"{error_of_mean(column):.4f}" for column in columns]
    lines.append(f"| mean | {' | '.join(f'{one} ± {two}' for one, two in zip(means, errors, strict=True))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Coarse-to-fine against single-stage search at equal budget.")
    parser.add_argument("--samplers", nargs="+", default=["lanas", "evolution", "random"], choices=SAMPLERS)
    parser.add_argument("--seeds", type=int, help=f"on the table: searches (default {SEEDS}); with --demo: trainings")
    parser.add_argument("--demo", type=Path, metavar="OUT", help="real searches, in this folder")
    parser.add_argument("--preset", default="demo", help="of the real searches")
    parser.add_argument("--searches", type=int, default=3, help="seeds of the real searches, from 0 on")
    parser.add_argument("--steps", type=int, default=150, help="of the winners' trainings")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if options.demo:
        seeds = range(FIRST_SEED, FIRST_SEED + (options.seeds or 3))
        on_demo(options.demo, options.preset, options.searches, options.steps, seeds)
    else:
        on_table(options.samplers, range(options.seeds or SEEDS))


if __name__ == "__main__":
    main()
