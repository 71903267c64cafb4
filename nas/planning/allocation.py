"""The MILP allocation: widths and activations of all layers that minimize the sum of their predicted losses within the
budget, by mixed-integer linear programming, as Puzzle (Bercovich et al., 2024) chooses blocks by their scores.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from scipy.optimize import Bounds, LinearConstraint, milp

from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.counting import add
from search_spaces.graph import FFNGraph
from search_spaces.layer import FFN, Layer
from search_spaces.operations import UNARY
from search_spaces.spaces import Space

# The solver stops after this many nodes with the best allocation that it has found (a limit on time would give another
# result on a busy machine).
NODES = 20_000
# Several allocations differ in at least this many layers.
DISTANCE = 2


@dataclass(frozen=True, eq=False)
class PredictedLosses:
    """The losses that `supernet.order.prediction` predicts, summed over layers.

    Attributes:
        base: the base of all architectures.
        activation: the operation of the base graph.
        losses: operation -> `[layer]` -> (L + 1,), nats per token, by the number of channels.
    """

    base: Base
    activation: str
    losses: Mapping[str, Sequence[np.ndarray]]

    @classmethod
    def load(cls, path: Path, base: Base, graph: FFNGraph) -> "PredictedLosses":
        """Read what `nas.preparation.predictions` has saved."""
        losses: dict[str, list[np.ndarray]] = {}
        for key, values in load_file(path).items():
            op, layer = key.rsplit("/", 1)
            losses.setdefault(op, [np.empty(0)] * base.depth)[int(layer)] = values
        return cls(base, graph.nodes[-2].op, losses)

    def of_layer(self, layer: int, ffn: FFN) -> float:
        """The predicted loss of a layer with this FFN. It depends on the width and on the operation whose output
        `project` reads; if that is not an activation, on the base graph's. Nothing else in the graph counts, nor do
        further blocks or experts; a width beyond those of the table counts as its widest.
        """
        if ffn.stack == 0:
            return float(self.losses[self.activation][layer][0])
        graph = ffn.graph
        read = graph.nodes[graph.nodes[graph.find("project")].inputs[0]].op
        losses = self.losses.get(read, self.losses[self.activation])[layer]
        return float(losses[min(ffn.inner(self.base), len(losses) - 1)])

    def of(self, architecture: Architecture) -> float:
        """The predicted loss of an architecture: the sum over its layers."""
        return sum(self.of_layer(layer, ffn) for layer, ffn in enumerate(architecture.ffns))


def allocate(
    space: Space,
    losses: PredictedLosses,
    *,
    exclude: Iterable[Architecture] = (),
    distance: int = 1,
) -> Architecture | None:
    """The member of the space whose predicted loss is least, among those whose graphs are activations between the
    linear maps (or, if graphs do not vary, the start's). Of sizes with equal predicted losses, such as one block and
    two, only the one with the fewest parameters is considered; so attention and head have the fewest experts.

    Args:
        exclude: architectures from which the result must differ in at least `distance` layers.

    Returns:
        None if there is no such architecture.
    """
    layers = [_options(space, layer) for layer in range(space.base.depth)]
    head = space.rows(space.start_graphs)[0][-1][0]
    # What is not the FFNs' is left out, so that it does not cost the solver digits.
    without_ffn = [space.cost(replace(options[0], ffn=FFN(stack=0))) for options in layers]
    bounds = space.bounds.without(add(space.cost(head), *without_ffn))
    owner = np.repeat(np.arange(len(layers)), [len(options) for options in layers])
    flat = [option for options in layers for option in options]
    predicted = np.array([losses.of_layer(int(layer), option.ffn) for layer, option in zip(owner, flat, strict=True)])
    one_each = np.equal(owner[None, :], np.arange(len(layers))[:, None]).astype(float)
    costs = np.array([space.cost(option) for option in flat], float) - np.array(without_ffn, float)[owner]
    high = np.array(bounds.high, float)
    low = np.concatenate(([bounds.low], np.full(len(high) - 1, -np.inf)))
    scale = np.maximum(1.0, np.abs(high))
    constraints = [
        LinearConstraint(one_each, 1, 1),
        # Half a unit of slack, as the solver computes in floating point and costs are whole numbers.
        LinearConstraint(costs.T / scale[:, None], (low - 0.5) / scale, (high + 0.5) / scale),
    ]
    for architecture in exclude:
        same = [float(option == architecture.layers[layer]) for layer, option in zip(owner, flat, strict=True)]
        constraints.append(LinearConstraint(np.array([same]), -np.inf, len(layers) - distance))
    solution = milp(
        predicted / max(float(predicted.max()), 1e-300),
        integrality=np.ones(len(flat)),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"node_limit": NODES, "mip_rel_gap": 0.0},
    )
    if solution.x is None:
        return None
    chosen = [flat[place] for place in np.flatnonzero(solution.x > 0.5)]
    architecture = space.of_parts([*chosen, head])
    return architecture if space.within_budget(architecture) else None


def allocations(space: Space, losses: PredictedLosses, number: int) -> list[Architecture]:
    """Up to `number` allocations, the best first, any two of which differ in at least `DISTANCE` layers."""
    results: list[Architecture] = []
    while len(results) < number:
        architecture = allocate(space, losses, exclude=results, distance=min(DISTANCE, space.base.depth))
        if architecture is None:
            break
        results.append(architecture)
    return results


def _options(space: Space, layer: int) -> list[Layer]:
    """What a layer may be: of those with the same predicted loss, the one with the fewest parameters."""
    graphs = [space.start_graphs[layer]]
    if space.varies_graphs:
        spelled = (FFNGraph.parse(f"project({op}(expand(x)))") for op in UNARY)
        graphs = [graph for graph in spelled if space.spells(graph)]
    cheapest: dict[tuple[FFNGraph, int, Fraction], Layer] = {}
    for graph in graphs:
        for option in space.options(layer, graph):  # in the order of their parameters
            ffn = option.ffn
            cheapest.setdefault((ffn.graph, min(ffn.stack, 1), ffn.expansion), option)
    return list(cheapest.values())
