"""How many evaluations the samplers need on a tabulated space: `python -m benchmarks samplers`.

The table is that of `tabulate`; a sampler's search is an Optuna study in memory, one trial after the other,
that is told what the table says. Reports the number of evaluations until the first architecture of the best 1 %, and
draws the best score so far. Samplers are told what an architecture keeps of the importance of the demo's supernet, as a
search tells them. With `--ablation` the parts of LaNAS take the place of the samplers. Constants of samplers
were chosen on other seeds, from 1,000 on.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import optuna
import torch
from scipy.stats import kendalltau

from nas.budget import kept_importance
from nas.samplers import SAMPLERS, Proposer, ZeroCostProxy
from nas.samplers.lanas import START, LaNAS
from nas.study import ledger
from search_spaces.architecture import Architecture, Base, Genes
from search_spaces.spaces import SIZES, Space

TABLE = Path(__file__).with_name("tabulated.npz")
SEEDS = 100
# A search ends when it has found one of the best 1 %, but not before SHOWN evaluations, and after MOST at the latest.
SHOWN, MOST = 60, 300
SHARE = 0.01
# As `SAMPLERS`' values.
MakeSampler = Callable[[Space, int, ZeroCostProxy], Proposer]
# Classes of both tasks of the table.
LABELS = 2


@dataclass(frozen=True)
class Table:
    """A space, the score of each of its members, and what samplers are told."""

    space: Space
    scores: dict[Architecture, float]
    hint: ZeroCostProxy

    @property
    def good(self) -> float:
        """The lowest score of the best 1 %."""
        return sorted(self.scores.values())[-int(SHARE * len(self.scores))]


def load(path: Path = TABLE) -> Table:
    """The table of `tabulate`; a score is the mean accuracy over the tasks."""
    with np.load(path) as file:
        facts = json.loads(str(file["facts"]))
        rows, accuracies, importance = file["rows"], file["accuracies"], torch.from_numpy(file["importance"])
    base = Base(**{name: facts[name] for name in ("depth", "width", "heads", "inner")})
    expansions = tuple(map(Fraction, facts["expansions"]))
    space = Space(
        base,
        (1,),
        expansions,
        facts["min_params"],
        facts["max_params"],
        start=Architecture.uniform(base),
        vary=frozenset({SIZES}),
        labels=LABELS,
    )
    architectures = (
        Architecture(base, tuple(Genes(space.graph, 1, expansions[place]) for place in row)) for row in rows
    )
    scores = dict(zip(architectures, map(float, accuracies.mean(axis=1)), strict=True))
    return Table(space, scores, kept_importance(list(importance)))


def search(table: Table, sampler: MakeSampler, seed: int) -> list[float]:
    """The scores that a sampler finds, in order."""
    study = optuna.create_study(direction="maximize", sampler=sampler(table.space, seed, table.hint))
    found: list[float] = []
    while len(found) < SHOWN or (max(found) < table.good and len(found) < MOST):
        trial, architecture = ledger.ask(study, table.space, "benchmark", LABELS)
        found.append(table.scores[architecture])
        ledger.complete(study, trial.number, found[-1], {})
    return found


def hits(table: Table, found: Sequence[Sequence[float]]) -> np.ndarray:
    """The number of evaluations up to the first good one, of every search; MOST where there was none."""
    return np.array([next((n for n, value in enumerate(one, 1) if value >= table.good), MOST) for one in found])


class Published(LaNAS):
    """LaNAS as published, but for its constants: choices as numbers, and random members of the leaf."""

    def __init__(self, space: Space, seed: int, hint: ZeroCostProxy) -> None:
        super().__init__(space, seed)

    def features(self, architectures: Sequence[Architecture]) -> np.ndarray:
        places = {expansion: place for place, expansion in enumerate(self.space.expansions)}
        return np.array([[places[genes.expansion] for genes in one.layers] for one in architectures], dtype=float)

    def candidates(self, best: list[Architecture], rng: random.Random) -> Iterator[Architecture]:
        for _ in range(100):
            yield self.space.sample(rng)

    def order(self, new: np.ndarray, features: np.ndarray, values: np.ndarray) -> Iterable[int]:
        return range(len(new))


class Encoded(Published):
    """With the encoding of the widths."""

    features = LaNAS.features


class Mutated(Encoded):
    """With neighbours of the leaf's best too."""

    def candidates(self, best: list[Architecture], rng: random.Random) -> Iterator[Architecture]:
        found = list(LaNAS.candidates(self, best, rng))
        rng.shuffle(found)
        yield from found


def late(space: Space, seed: int, hint: ZeroCostProxy) -> Proposer:
    """With the hint, and as many random proposals as without it."""
    sampler = LaNAS(space, seed, hint)
    sampler.start = START
    return sampler


class Treeless(LaNAS):
    """All of it but the tree."""

    least = MOST


ABLATION: dict[str, MakeSampler] = {
    "published rule": Published,
    "+ encoding": Encoded,
    "+ mutation": Mutated,
    "+ surrogate": lambda space, seed, hint: LaNAS(space, seed),
    "+ importance": late,
    "+ two random proposals, not five (lanas)": LaNAS,
    "lanas without the tree": Treeless,
}


def draw(path: Path, curves: dict[str, np.ndarray], good: float) -> None:
    """The mean best score so far of every sampler, with its standard error."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    evaluations = np.arange(1, SHOWN + 1)
    for name, best in curves.items():
        mean, error = best.mean(axis=0), best.std(axis=0, ddof=1) / len(best) ** 0.5
        axes.plot(evaluations, mean, label=name)
        axes.fill_between(evaluations, mean - error, mean + error, alpha=0.2)
    axes.axhline(good, color="black", linewidth=0.8, linestyle="dotted", label="best 1 %")
    axes.set(xlabel="evaluations", ylabel=f"best score so far, mean of {len(best)} searches")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ablation", action="store_true", help="the parts of LaNAS in place of the samplers")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="searches of each sampler")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="where the drawing goes")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    table = load()
    most = max(table.scores.values())
    print(f"{len(table.scores)} architectures, scores up to {most:.4f}, best 1 % from {table.good:.4f}")
    hints = {one: table.hint(one) for one in table.scores}
    tau = kendalltau(list(hints.values()), list(table.scores.values())).statistic
    first = [table.scores[one] for one in sorted(hints, key=lambda one: -hints[one])[:5]]
    print(f"importance kept: tau {tau:.2f}; the five that keep most score {min(first):.4f} to {max(first):.4f}\n")
    print("| sampler | mean | standard error | median | 90th percentile |\n|---|---|---|---|---|")
    # The sampler of two goals has no part in this.
    chosen: Mapping[str, MakeSampler] = ABLATION
    if not options.ablation:
        chosen = {name: one for name, one in SAMPLERS.items() if name != "nsga2"}
    curves = {}
    for name, sampler in chosen.items():
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        found = [search(table, sampler, seed) for seed in seeds]
        count = hits(table, found)
        curves[name] = np.array([np.maximum.accumulate(one[:SHOWN]) for one in found])
        error = count.std(ddof=1) / len(count) ** 0.5
        row = (f"{count.mean():.1f}", f"{error:.1f}", f"{np.median(count):.0f}", f"{np.percentile(count, 90):.0f}")
        print(f"| {name} | {' | '.join(row)} |", flush=True)
    if options.plot:
        draw(options.plot, curves, table.good)


if __name__ == "__main__":
    main()
