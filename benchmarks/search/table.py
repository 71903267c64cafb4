"""The tabulated space: every member of a small space with its score, which `tabulate` makes."""

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from nas.budget import kept_importance
from nas.samplers import ZeroCostProxy
from search_spaces.architecture import Architecture, Genes
from search_spaces.base import Base
from search_spaces.spaces import SIZES, Space

TABLE = Path(__file__).with_name("tabulated.npz")
# An architecture is good when its score is among this best share.
GOOD_SHARE = 0.01
# Classes of both tasks of the table.
LABELS = 2


@dataclass(frozen=True)
class Table:
    """A space, the score of each of its members, and the zero-cost proxy that a search gives its sampler."""

    space: Space
    scores: dict[Architecture, float]
    proxy: ZeroCostProxy

    @property
    def good(self) -> float:
        """The lowest score of a good architecture."""
        return sorted(self.scores.values())[-int(GOOD_SHARE * len(self.scores))]


def load(path: Path = TABLE) -> Table:
    """The table of a file; a score is the mean accuracy over the tasks."""
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
