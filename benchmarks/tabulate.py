"""Makes the two tabulated spaces: scores every architecture of a small space on the demo, for comparing samplers.

- `ffns`: the demo's stage 3 from the base model: one block a layer, six expansions, parameters at most 5 % (of what the
  FFNs have above the smallest) below the uniform slice at 1/8. The figures are the accuracies of the slice of a trained
  one-shot supernet, without training, on the first rows of both tasks' search splits; their mean is the score.
- `layers`: 3 or 12 heads and one of three expansions in each layer; within 0.5 % as many parameters as the base model
  with half of its heads and channels. The figures are the fidelity to the teacher, which is the score, and the accuracy
  after compensated inheritance, without training, on the first rows of the search split; and, for a random part of the
  members, the accuracy after a candidate's training.

Beside the figures is what a search gives its samplers: of `ffns` the importance of the supernet's neurons, for their
zero-cost proxy, and of `layers` the predicted losses. What the file of raw numbers has already is not measured again.
A table is written to benchmarks/tabulated-<space>.npz.
"""

import itertools
import json
import random
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import BenchmarkError, Kept, Report
from nas.config.load import load_config
from nas.evaluation.one_shot import OneShotEvaluator
from nas.evaluation.trained import TrainedEvaluator
from nas.evaluation.untrained import FIDELITY, UntrainedEvaluator
from nas.planning.allocation import PredictedLosses
from nas.planning.budget import budgeted_space, kept_importance
from nas.preparation.one_shot import prepare_one_shot
from nas.preparation.prepare import prepare
from nas.preparation.workspace import UntrainedWorkspace, Workspace
from nas.samplers import ZeroCostProxy
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import FFN
from search_spaces.spaces import SIZES, Space

FFNS, LAYERS = "ffns", "layers"
# The preset of each space, and what differs from it.
SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    FFNS: ("demo-ffn", {"space.stacks": [1], "space.expansions": ["1/64", "1/32", "1/16", "1/8", "3/16", "3/8"]}),
    LAYERS: (
        "demo",
        {
            "tasks": ["word_order"],
            "deployment.runtime": "torch",
            "space.max_latency": None,
            "space.stacks": [1],
            "space.heads": [3, 12],
            "space.expansions": ["1/16", "1/4", "2/3"],
            "space.uniform": None,
            "space.min_params": 17_372_000,
            "space.max_params": 17_400_000,
        },
    ),
}
# An architecture is good when its score is among this best fraction.
GOOD = 0.01
ACCURACY, TRAINED = "accuracy", "accuracy after training"
# The places of each layer's heads and expansion among the choices of these genes, lowest layer first.
GENES = ("heads", "expansion")
Places = Sequence[Sequence[int]]


def path_of(space: str) -> Path:
    return Path(__file__).with_name(f"tabulated-{space}.npz")


@dataclass(frozen=True)
class Table:
    """A space and the figures of each of its members.

    Attributes:
        figures: (members, figures), those that were not measured NaN.
        names: of the figures.
        score: the places of the figures whose mean is the score.
        proxy: the zero-cost proxy that a search gives its sampler.
        losses: the predicted losses of parts; None if the table has none.
    """

    space: Space
    members: Mapping[Architecture, int]
    figures: np.ndarray
    names: tuple[str, ...]
    score: tuple[int, ...]
    proxy: ZeroCostProxy
    losses: PredictedLosses | None

    def query(self, architecture: Architecture) -> dict[str, float]:
        """The figures of an architecture, by name.

        Raises:
            SpaceError: it is outside of the space.
            BenchmarkError: it is none of the members that were tabulated.
        """
        self.space.choices(architecture)
        if architecture not in self.members:
            raise BenchmarkError("the table has only the first members of its space, and this architecture is another")
        values = self.figures[self.members[architecture]]
        return {name: float(value) for name, value in zip(self.names, values, strict=True) if not np.isnan(value)}

    @cached_property
    def scores(self) -> dict[Architecture, float]:
        means = self.figures[:, self.score].mean(axis=1)
        return {architecture: float(means[row]) for architecture, row in self.members.items()}

    @property
    def good(self) -> float:
        """The lowest score of a good architecture."""
        return sorted(self.scores.values())[-int(GOOD * len(self.scores))]


def load(space: str = FFNS, path: Path | None = None) -> Table:
    """The table of a space, or of a file."""
    with np.load(path or path_of(space)) as file:
        facts, arrays = json.loads(str(file["facts"])), {name: file[name] for name in file if name != "facts"}
    base = Base(**{name: facts[name] for name in ("depth", "width", "heads", "inner")})
    tabulated = Space(
        base,
        {"stack": (1,), "heads": tuple(facts["heads choices"]), "expansion": tuple(map(Fraction, facts["expansions"]))},
        facts["min_params"],
        facts["max_params"],
        start=Architecture.uniform(base),
        vary=frozenset({SIZES}),
        num_labels=facts["labels"],
    )
    rows = {architecture(tabulated, row): number for number, row in enumerate(arrays["rows"].tolist())}
    score = tuple(map(facts["figures"].index, facts["score"]))
    if "importance" in arrays:
        losses, proxy = None, kept_importance(list(torch.from_numpy(arrays["importance"])))
    else:
        activation = tabulated.activation
        losses = PredictedLosses(
            base, activation, {activation: list(arrays["ffn losses"])}, list(arrays["attention losses"])
        )
        proxy = lru_cache(8192)(lambda one: -losses.of(one))
    return Table(tabulated, rows, arrays["figures"], tuple(facts["figures"]), score, proxy, losses)


def architecture(space: Space, row: Places) -> Architecture:
    """The architecture of one row of the table."""
    heads, expansions = (space.genes[gene] for gene in GENES)
    ffns = tuple(FFN(space.graph, 1, expansions[place]) for _, place in row)
    return Architecture.of_ffns(space.base, ffns).with_heads([heads[place] for place, _ in row])


def members(space: Space) -> Iterator[Places]:
    """The rows of all architectures inside the space's budget."""
    options = itertools.product(*(range(len(space.genes[gene])) for gene in GENES))
    for row in itertools.product(list(options), repeat=space.base.depth):
        if space.within_budget(architecture(space, row)):
            yield row


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--space", choices=SETTINGS, default=LAYERS, help="default: %(default)s")
    parser.add_argument("--preset", help="preset or .toml file of another space of this kind")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: benchmarks/tabulated-<space>.npz")
    parser.add_argument("--members", type=int, metavar="N", help="the first N members alone (default: all)")
    parser.add_argument(
        "--trained", type=int, default=30, metavar="N", help="train so many members of layers; default: %(default)s"
    )


def run(options: Namespace, report: Report) -> None:
    config = load_config(options.preset) if options.preset else load_config(*SETTINGS[options.space])
    workspace = prepare(config, "cpu")
    base, graph = workspace.base()
    start = Architecture.uniform(base, graph=graph)
    space = budgeted_space(config, base, graph, workspace.num_labels, start=start, vary=frozenset({SIZES}))
    rows = list(itertools.islice(members(space), options.members))
    report.note(f"{len(rows):,} architectures of {space.min_params:,} to {space.max_params:,} parameters")
    kept = Kept(report, {"config": config.model_dump(mode="json")}, [config.seed])
    measure = _ffns if options.space == FFNS else partial(_layers, trained=options.trained)
    figures, names, score, arrays = measure(workspace, space, rows, kept)
    facts = {
        "tasks": list(config.tasks),
        "seed": config.seed,
        "heads choices": list(space.genes["heads"]),
        "expansions": [str(expansion) for expansion in space.genes["expansion"]],
        **{name: getattr(base, name) for name in ("depth", "width", "heads", "inner")},
        "labels": workspace.num_labels,
        "min_params": space.min_params,
        "max_params": space.max_params,
        "figures": names,
        "score": score,
        "torch": torch.__version__,
    }
    np.savez_compressed(
        options.out or path_of(options.space),
        rows=np.array(rows, dtype=np.uint8),
        figures=np.array(figures, dtype=np.float32),
        facts=np.array(json.dumps(facts)),
        **arrays,
    )
    scores = np.mean([[figures[names.index(name)] for name in score] for figures in figures], axis=1)
    report.note(f"scores from {scores.min():.4f} to {scores.max():.4f}, deviation {scores.std():.4f}")


# The figures of all rows, their names, those whose mean is the score, and further arrays of the file.
Measured = tuple[list[list[float]], list[str], list[str], dict[str, Any]]


def _ffns(workspace: Workspace, space: Space, rows: Sequence[Places], kept: Kept) -> Measured:
    evaluator = OneShotEvaluator(prepare_one_shot(workspace, space, "cpu"), "cpu")
    names = [f"{ACCURACY} on {task}" for task in workspace.config.tasks]

    def accuracies(row: Places) -> list[float]:
        scores = evaluator.evaluate(architecture(space, row)).parts
        return [scores[task] for task in workspace.config.tasks]

    figures = [kept(f"{row}", partial(accuracies, row)) for row in rows]
    return figures, names, names, {"importance": torch.stack(workspace.importance()).numpy()}


def _layers(workspace: Workspace, space: Space, rows: Sequence[Places], kept: Kept, *, trained: int) -> Measured:
    config = workspace.config
    untrained = UntrainedEvaluator(UntrainedWorkspace((workspace,), config.stage1.rows, by_fidelity=True), "cpu")
    evaluator = TrainedEvaluator(workspace, "cpu")

    def scores(row: Places) -> list[float]:
        score = untrained.evaluate(architecture(space, row))
        return [score.value, score.parts[config.task]]

    def score_after_training(row: Places) -> float:
        return evaluator.evaluate(architecture(space, row), config.seed).value

    figures = [[*kept(f"{row}", partial(scores, row)), np.nan] for row in rows]
    for number in random.Random(config.seed).sample(range(len(rows)), min(trained, len(rows))):
        figures[number][-1] = kept(f"{rows[number]}, trained", partial(score_after_training, rows[number]))
    assert workspace.compensation is not None  # the preset's inheritance
    losses = PredictedLosses.load(workspace.compensation.predictions, *workspace.base())
    of_ffns, of_attentions = np.stack(losses.losses[space.activation]), np.stack(losses.heads)
    arrays: dict[str, Any] = {"ffn losses": of_ffns, "attention losses": of_attentions}
    return figures, [FIDELITY, ACCURACY, TRAINED], [FIDELITY], arrays
