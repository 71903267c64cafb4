"""Makes the tabulated space: scores every architecture of a small space on the demo, for comparing samplers.

The space is the demo's stage 3 from the base model: one block a layer, six expansions, parameters at most 5 % (of what
the FFNs have above the smallest) below the uniform slice at 1/8. A score is the accuracy of the slice of a trained
one-shot supernet, without training, as the mean of both tasks on the first rows of their search splits. The importance
of the supernet's neurons, from which samplers get their zero-cost proxy, is kept beside the scores.

What the file of raw numbers has already is not measured again. The table is written to benchmarks/tabulated.npz.
"""

import itertools
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import Kept, Report
from nas.config.load import load_config
from nas.evaluation.one_shot import OneShotEvaluator
from nas.planning.budget import budgeted_space, kept_importance
from nas.preparation.one_shot import prepare_one_shot
from nas.preparation.prepare import prepare
from nas.samplers import ZeroCostProxy
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import FFN
from search_spaces.spaces import SIZES, Space

TABLE = Path(__file__).with_name("tabulated.npz")
EXPANSIONS = ["1/64", "1/32", "1/16", "1/8", "3/16", "3/8"]
# An architecture is good when its score is among this best fraction.
GOOD = 0.01
# Classes of both tasks of the table.
LABELS = 2
# The places of the layers' expansions, lowest layer first.
Places = tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """A space, the score of each of its members, and the zero-cost proxy that a search gives its sampler."""

    space: Space
    scores: dict[Architecture, float]
    proxy: ZeroCostProxy

    @property
    def good(self) -> float:
        """The lowest score of a good architecture."""
        return sorted(self.scores.values())[-int(GOOD * len(self.scores))]


def load(path: Path = TABLE) -> Table:
    """The table of a file; a score is the mean accuracy over the tasks."""
    with np.load(path) as file:
        facts = json.loads(str(file["facts"]))
        rows, accuracies, importance = file["rows"], file["accuracies"], torch.from_numpy(file["importance"])
    base = Base(**{name: facts[name] for name in ("depth", "width", "heads", "inner")})
    space = Space(
        base,
        {"stack": (1,), "expansion": tuple(map(Fraction, facts["expansions"]))},
        facts["min_params"],
        facts["max_params"],
        start=Architecture.uniform(base),
        vary=frozenset({SIZES}),
        num_labels=LABELS,
    )
    architectures = (architecture(space, row) for row in rows)
    scores = dict(zip(architectures, map(float, accuracies.mean(axis=1)), strict=True))
    return Table(space, scores, kept_importance(list(importance)))


def architecture(space: Space, row: Places) -> Architecture:
    """The architecture of one row of the table."""
    return Architecture.of_ffns(
        space.base, tuple(FFN(space.graph, 1, space.genes["expansion"][place]) for place in row)
    )


def members(space: Space) -> Iterator[Places]:
    """The rows of all architectures inside the space's budget."""
    for row in itertools.product(range(len(space.genes["expansion"])), repeat=space.base.depth):
        if space.within_budget(architecture(space, row)):
            yield row


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo-ffn", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--out", type=Path, default=TABLE, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--members", type=int, metavar="N", help="the first N members alone (default: all)")


def run(options: Namespace, report: Report) -> None:
    config = load_config(options.preset, {"space.stacks": [1], "space.expansions": EXPANSIONS})
    workspace = prepare(config, "cpu")
    base, graph = workspace.base()
    start = Architecture.uniform(base, graph=graph)
    space = budgeted_space(config, base, graph, workspace.num_labels, start=start, vary=frozenset({SIZES}))
    evaluator = OneShotEvaluator(prepare_one_shot(workspace, space, "cpu"), "cpu")
    rows = list(itertools.islice(members(space), options.members))
    report.note(f"{len(rows):,} architectures of {space.min_params:,} to {space.max_params:,} parameters")
    kept = Kept(report, {"config": config.model_dump(mode="json")}, [config.seed])

    def accuracies(row: Places) -> list[float]:
        scores = evaluator.evaluate(architecture(space, row)).parts
        return [scores[task] for task in config.tasks]

    measured = [kept(f"{row}", partial(accuracies, row)) for row in rows]
    facts = {
        "tasks": list(config.tasks),
        "rows": config.one_shot.rows,
        "steps": config.one_shot.steps,
        "seed": config.seed,
        "expansions": [str(expansion) for expansion in space.genes["expansion"]],
        **{name: getattr(base, name) for name in ("depth", "width", "heads", "inner")},
        "min_params": space.min_params,
        "max_params": space.max_params,
        "torch": torch.__version__,
    }
    np.savez_compressed(
        options.out,
        rows=np.array(rows, dtype=np.uint8),
        accuracies=np.array(measured, dtype=np.float32),
        facts=np.array(json.dumps(facts)),
        importance=torch.stack(workspace.importance()).numpy(),
    )
    means = np.mean(measured, axis=1)
    report.note(f"scores from {means.min():.4f} to {means.max():.4f}, deviation {means.std():.4f}")
