"""Two tabulated spaces: the scores of every architecture of a small space on the demo, for comparing samplers.

- `ffns`: one block a layer, six expansions, parameters at most 5 % (of what the FFNs have above the smallest) below the
  uniform slice at 1/8. The figures are the accuracies of the slice of a trained one-shot supernet, without training, on
  the first rows of both tasks' search splits; their mean is the score.
- `layers`: 3 or 12 heads and one of three expansions in each layer; within 0.5 % as many parameters as the base model
  with half of its heads and channels. The figures are the fidelity to the teacher, which is the score, and the accuracy
  after compensated inheritance, without training, on the first rows of the search split; and, for a random part of the
  members, the accuracy after a candidate's training.

Beside the figures is what a search gives its samplers: of `ffns` the importance of the supernet's neurons, for their
zero-cost proxy, and of `layers` the predicted losses. results/samplers.md says how they were made.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch

from nas.planning.allocation import PredictedLosses
from nas.planning.budget import kept_importance
from nas.samplers import ZeroCostProxy
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import FFN
from search_spaces.spaces import SIZES, Space

FFNS, LAYERS = "ffns", "layers"
SPACES = (FFNS, LAYERS)
# An architecture is good when its score is among this best fraction.
GOOD = 0.01
TRAINED = "accuracy after training"


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
        """The figures of an architecture, by name. Raises SpaceError if it is outside of the space."""
        self.space.choices(architecture)
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


def architecture(space: Space, row: Sequence[Sequence[int]]) -> Architecture:
    """The architecture of a row: the places of each layer's heads and expansion among their choices."""
    heads, expansions = space.genes["heads"], space.genes["expansion"]
    ffns = tuple(FFN(space.graph, 1, expansions[place]) for _, place in row)
    return Architecture.of_ffns(space.base, ffns).with_heads([heads[place] for place, _ in row])
