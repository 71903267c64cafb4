"""The members of a search space near an architecture: the neighbours of a member, and the member nearest to any other
architecture.

Steps that leave the budget are repaired by construction, without rejection sampling.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from search_spaces.architecture import Architecture
from search_spaces.counting import Bounds, Cost, add, count_within
from search_spaces.genes import Part, distance
from search_spaces.layer import Layer
from search_spaces.spaces import Space

# The fraction of steps that change a graph if both graphs and sizes are searched.
GRAPH_STEPS = 1 / 3
# Number of random starts of the coordinate descent to the nearest member.
STARTS = 3


def neighbours(space: Space, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
    """Members of the space one step away, in random order: one layer differs in its number of heads, in its other
    sizes or in one choice of its graph, or the head or the word embedding differs in its size.

    A step that leaves the budget is repaired by changing one more such size, at a random second place, if one fits. For
    an architecture outside the space, the first neighbour is its nearest member, followed by that member's neighbours.
    """
    if architecture not in space:
        architecture = nearest(space, architecture)
        yield architecture
    kinds = [(_size_steps(space, architecture, rng), 1 - GRAPH_STEPS)] if space.varies_sizes else []
    if space.varies_graphs:
        kinds.append((_graph_steps(space, architecture, rng), GRAPH_STEPS))
    while kinds:
        steps = rng.choices([kind[0] for kind in kinds], [kind[1] for kind in kinds])[0]
        neighbour = next(steps, None)
        if neighbour is None:
            kinds = [kind for kind in kinds if kind[0] is not steps]
        else:
            yield neighbour


def nearest(space: Space, architecture: Architecture) -> Architecture:
    """A member of the space close to an architecture, which must have the same base but may have any graphs and sizes.

    Graphs outside the space become the base graph (or the start's). For the sizes, coordinate descent from random
    starts, over two parts at a time, minimizes the sum of the `distance`s, so the result is
    the nearest member or close to it.
    """
    graphs = [
        graph if space.varies_graphs and space.can_express(graph) else start
        for graph, start in zip(space.graphs_of(architecture), space.start_graphs, strict=True)
    ]
    if not count_within(space.options_of_parts(graphs)[1], space.bounds):
        graphs = list(space.start_graphs)  # with which a space always has members
    (options, costs), bounds = space.options_of_parts(graphs), space.bounds
    for row in costs:
        if len(row) == 1:
            bounds = bounds.without(row[0])
    free = [place for place, row in enumerate(options) if len(row) > 1]
    chosen = [0] * len(options)
    distances = [
        [distance(space.base, option, architecture.parts[place]) for option in options[place]] for place in free
    ]
    best = _nearest_options(space, [costs[place] for place in free], distances, bounds)
    for place, option in zip(free, best, strict=True):
        chosen[place] = option
    return space.of_parts([row[option] for row, option in zip(options, chosen, strict=True)])


def _nearest_options(
    space: Space, costs: Sequence[tuple[Cost, ...]], distances: Sequence[Sequence[float]], bounds: Bounds
) -> list[int]:
    """One option of every row, within the bounds, with the smallest sum of distances or close to it."""
    if not costs:
        return []
    if len(costs) == 1:
        inside = (option for option, cost in enumerate(costs[0]) if cost in bounds)
        return [min(inside, key=distances[0].__getitem__)]

    def start(seed: int) -> list[int]:
        rng = random.Random(seed)
        return space.draw_sizes(costs, bounds, lambda place: rng.random())

    return min(
        (_descend(start(seed), costs, distances, bounds) for seed in range(STARTS)),
        key=lambda chosen: sum(row[option] for row, option in zip(distances, chosen, strict=True)),
    )


def is_step(one: Part, other: Part) -> bool:
    """Whether replacing one part by the other is a single step: layers may differ in their heads or in their other
    genes, but not in both; other parts just have to differ.
    """
    if isinstance(one, Layer) and isinstance(other, Layer) and one.attention.heads != other.attention.heads:
        return (one.attention.experts, one.ffn) == (other.attention.experts, other.ffn)
    return one != other


def _size_steps(space: Space, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
    steps = [
        (place, part)
        for place, options in enumerate(space.options_of_parts(space.graphs_of(architecture))[0])
        for part in options
        if is_step(architecture.parts[place], part)
    ]
    rng.shuffle(steps)
    for place, part in steps:
        yield from _repaired(space, architecture, place, part, rng)


def _graph_steps(space: Space, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
    steps = []
    for layer, ffn in enumerate(architecture.ffns):
        if not ffn.stack:
            continue
        choices_of_graph = space.choices_of_graph(ffn.graph, _NAME)
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
        before = architecture.layers[layer]
        if graph != before.ffn.graph:
            changed = replace(before, ffn=replace(before.ffn, graph=graph))
            yield from _repaired(space, architecture, layer, changed, rng)


def _repaired(
    space: Space, architecture: Architecture, place: int, part: Part, rng: random.Random
) -> Iterator[Architecture]:
    """The architecture with another part at this place and, if the budget requires it, another size at a
    second place. Yields nothing if none fits.
    """
    parts = list(architecture.parts)
    parts[place] = part
    changed = space.of_parts(parts)
    if space.within_budget(changed):
        yield changed
        return
    rest = space.bounds.without(add(*map(space.cost, parts)))
    rows = zip(*space.options_of_parts(space.graphs_of(architecture)), strict=True)
    fitting = []
    for other, (options, costs) in enumerate(rows):
        if other == place:
            continue
        bounds = rest.without(tuple(-cost for cost in space.cost(parts[other])))
        fitting += [
            (other, option)
            for option, cost in zip(options, costs, strict=True)
            if cost in bounds and (option == parts[other] or is_step(parts[other], option))
        ]
    if fitting:
        other, option = rng.choice(fitting)
        parts[other] = option
        yield space.of_parts(parts)


def _descend(
    chosen: list[int], costs: Sequence[Sequence[Cost]], distances: Sequence[Sequence[float]], bounds: Bounds
) -> list[int]:
    """Coordinate descent: make the best change of at most two parts at a time until none reduces the distance."""
    all_costs, all_distances = [np.array(row) for row in costs], [np.array(row) for row in distances]
    while True:
        best, gain = None, 1e-9
        spent = add(*(row[option] for row, option in zip(costs, chosen, strict=True)))
        for i, left in enumerate(chosen):
            for j in range(i + 1, len(chosen)):
                right = chosen[j]
                # The bounds of the two layers' sum, given all other layers.
                rest = bounds.without(spent).without(tuple(-cost for cost in add(costs[i][left], costs[j][right])))
                before = all_distances[i][left] + all_distances[j][right]
                gains = before - all_distances[i][:, None] - all_distances[j][None, :]
                sums = all_costs[i][:, None] + all_costs[j][None, :]
                inside = (sums <= np.array(rest.high)).all(axis=2) & (sums[..., 0] >= rest.low)
                gains = np.where(inside, gains, -np.inf)
                a, b = divmod(int(gains.argmax()), gains.shape[1])
                if gains[a, b] > gain:
                    best, gain = (i, a, j, b), gains[a, b]
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
