"""The members of a search space near an architecture: the neighbours of a member, and the member nearest to any other
architecture.

Steps that leave the budget are repaired by construction, without rejection sampling.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from search_spaces import variants
from search_spaces.architecture import Architecture, Genes
from search_spaces.base import Base
from search_spaces.counting import Bounds, Cost, add, count_within
from search_spaces.graph import FFNGraph
from search_spaces.spaces import Space

# The fraction of steps that change a graph if both graphs and sizes are searched.
GRAPH_STEPS = 1 / 3
# Number of random starts of the coordinate descent to the nearest member.
STARTS = 3


def neighbours(space: Space, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
    """Members of the space one step away, in random order: one layer differs in its size or in one choice of its graph,
    or the number of experts in attention or head differs.

    A step that leaves the budget is repaired by changing the size of a random second layer, if one fits; for another
    number of experts in attention or head, by the nearest sizes of all layers. For an architecture outside the space,
    the first neighbour is its nearest member, followed by that member's neighbours.
    """
    if architecture not in space:
        architecture = nearest(space, architecture)
        yield architecture
    kinds = [(_size_steps(space, architecture, rng), 1 - GRAPH_STEPS)] if space.varies_sizes else []
    if space.varies_graphs:
        kinds.append((_graph_steps(space, architecture, rng), GRAPH_STEPS))
    if len(space.bases) > 1:
        # As often as the genes of a layer.
        kinds.append((_base_steps(space, architecture, rng), 1 / space.base.depth))
    while kinds:
        steps = rng.choices([kind[0] for kind in kinds], [kind[1] for kind in kinds])[0]
        neighbour = next(steps, None)
        if neighbour is None:
            kinds = [kind for kind in kinds if kind[0] is not steps]
        else:
            yield neighbour


def nearest(space: Space, architecture: Architecture) -> Architecture:
    """A member of the space close to an architecture, which must have the same base, apart from the numbers of experts
    in attention and head, but may have any graphs and sizes.

    Graphs outside the space become the base graph (or the start's). The numbers of experts in attention and head are
    the nearest ones with which any sizes fit. For the sizes, coordinate descent from random starts, over two layers at
    a time, minimises the sum of the layers' `distance`, so the result is the nearest member or close to it.
    """
    bases = sorted(space.bases, key=lambda base: variants.distance(base, architecture.base))
    graphs = tuple(
        graph if space.varies_graphs and space.spells(graph) else start
        for graph, start in zip(_graphs(space, architecture), space.start_graphs, strict=True)
    )
    for all_graphs in (graphs, space.start_graphs):
        for base in bases:
            found = _nearest_sizes(space, base, all_graphs, architecture.layers)
            if found is not None:
                return found
    raise AssertionError("a space always has members with the start's graphs")


def _nearest_sizes(
    space: Space, base: Base, graphs: Sequence[FFNGraph], wanted: Sequence[Genes]
) -> Architecture | None:
    """The architecture with this base and these graphs whose sizes are the nearest ones within the budget, or close to
    these; None if none fit.
    """
    bounds = space.bounds_on(base)
    costs = [space.costs(layer, graph) for layer, graph in enumerate(graphs)]
    if not count_within(costs, bounds):
        return None
    options = [space.options(layer, graph) for layer, graph in enumerate(graphs)]
    distances = [[distance(space, option, genes) for option in row] for row, genes in zip(options, wanted, strict=True)]
    if base.depth == 1:
        inside = (option for option, cost in enumerate(costs[0]) if cost in bounds)
        best = [min(inside, key=distances[0].__getitem__)]
    else:
        starts = (space.draw_sizes(costs, bounds, random.Random(seed).random) for seed in range(STARTS))
        best = min(
            (_descend(chosen, costs, distances, bounds) for chosen in starts),
            key=lambda chosen: sum(row[option] for row, option in zip(distances, chosen, strict=True)),
        )
    return Architecture(base, tuple(row[option] for row, option in zip(options, best, strict=True)))


def distance(space: Space, option: Genes, wanted: Genes) -> float:
    """The difference in size between two layers: |log ratio| of the total inner channels + |difference| of the stacks +
    |log ratio| of the experts' counts, + 1 if any setting of the experts differs. No FFN counts as one channel.
    """
    channels, wanted_channels = (max(1, genes.stack * genes.inner(space.base)) for genes in (option, wanted))
    experts = abs(log(option.experts.count / wanted.experts.count)) + (option.experts != wanted.experts)
    return abs(log(channels / wanted_channels)) + abs(option.stack - wanted.stack) + experts


def _graphs(space: Space, architecture: Architecture) -> list[FFNGraph]:
    """The graphs that the layers have, or get if they change from no FFN to one."""
    return [space.graph_of(layer, genes) for layer, genes in enumerate(architecture.layers)]


def _size_steps(space: Space, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
    steps = [
        (layer, genes)
        for layer, graph in enumerate(_graphs(space, architecture))
        for genes in space.options(layer, graph)
        if genes != architecture.layers[layer]
    ]
    rng.shuffle(steps)
    for layer, genes in steps:
        yield from _within_budget(space, architecture, layer, genes, rng)


def _graph_steps(space: Space, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
    steps = []
    for layer, genes in enumerate(architecture.layers):
        if not genes.stack:
            continue
        choices_of_graph = space.choices_of_graph(genes.graph, _NAME)
        assert choices_of_graph is not None  # it is a member
        trial = _EditedTrial(choices_of_graph, rng)
        space.suggest_graph(trial, _NAME)
        steps += [
            (layer, choices_of_graph, name, choice)
            for name, choices in trial.seen.items()
            for choice in choices
            if choice != choices_of_graph[name]
        ]
    rng.shuffle(steps)
    for layer, choices_of_graph, name, choice in steps:
        graph = space.suggest_graph(_EditedTrial(choices_of_graph | {name: choice}, rng), _NAME)
        if graph != architecture.layers[layer].graph:
            genes = replace(architecture.layers[layer], graph=graph)
            yield from _within_budget(space, architecture, layer, genes, rng)


def _base_steps(space: Space, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
    steps = [base for base in space.bases if variants.differing(base, architecture.base) == 1]
    rng.shuffle(steps)
    for base in steps:
        changed = Architecture(base, architecture.layers)
        if space.keeps_budget(changed):
            yield changed
        elif (found := _nearest_sizes(space, base, _graphs(space, architecture), architecture.layers)) is not None:
            yield found


def _within_budget(
    space: Space, architecture: Architecture, layer: int, genes: Genes, rng: random.Random
) -> Iterator[Architecture]:
    """The architecture with these genes in one layer and, if the budget requires it, another size in a second layer.

    Yields nothing if no size of a second layer fits.
    """
    layers = list(architecture.layers)
    layers[layer] = genes
    changed = Architecture(architecture.base, tuple(layers))
    if space.keeps_budget(changed):
        yield changed
        return
    spent = add(*(space.cost(genes) for genes in layers))
    rest = space.bounds_on(architecture.base).without(spent)
    fitting = []
    for other, graph in enumerate(_graphs(space, architecture)):
        if other == layer:
            continue
        bounds = rest.without(tuple(-cost for cost in space.cost(layers[other])))
        row = zip(space.options(other, graph), space.costs(other, graph), strict=True)
        fitting += [(other, option) for option, cost in row if cost in bounds]
    if fitting:
        other, option = rng.choice(fitting)
        layers[other] = option
        yield Architecture(architecture.base, tuple(layers))


def _descend(
    chosen: list[int], costs: Sequence[Sequence[Cost]], distances: Sequence[Sequence[float]], bounds: Bounds
) -> list[int]:
    """Coordinate descent: make the best change of at most two layers at a time until none reduces the distance."""
    while True:
        best, gain = None, 1e-9
        spent = add(*(row[option] for row, option in zip(costs, chosen, strict=True)))
        for i, left in enumerate(chosen):
            for j in range(i + 1, len(chosen)):
                right = chosen[j]
                # The bounds of the two layers' sum, given all other layers.
                rest = bounds.without(spent).without(tuple(-cost for cost in add(costs[i][left], costs[j][right])))
                before = distances[i][left] + distances[j][right]
                for a, first in enumerate(distances[i]):
                    if before - first <= gain:
                        continue
                    for b, second in enumerate(distances[j]):
                        if before - first - second > gain and add(costs[i][a], costs[j][b]) in rest:
                            best, gain = (i, a, j, b), before - first - second
        if best is None:
            return chosen
        i, a, j, b = best
        chosen = [*chosen]
        chosen[i], chosen[j] = a, b


# Prefix of the parameter names of a graph; only one layer's graph is processed at a time here.
_NAME = "layer"


class _EditedTrial:
    """A trial that replays stored choices. Parameters that only exist after an edit are drawn uniformly, except that a
    new argument of a binary operation is not itself one: an edit adds one binary operation at most.
    """

    def __init__(self, choices: dict[str, str], rng: random.Random) -> None:
        self.choices = choices
        self.rng = rng
        self.seen: dict[str, Sequence[str]] = {}

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        self.seen[name] = choices
        stored = self.choices.get(name)
        if stored is not None:
            return stored
        return choices[0] if name.endswith("/op") else self.rng.choice(choices)

    def suggest_float(self, name: str, low: float, high: float) -> float:
        raise AssertionError("a graph has no sizes")
