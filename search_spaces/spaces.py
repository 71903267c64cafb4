"""The spaces of the search: graph, stack, expansion and experts of every layer, or some of them, inside a budget.

Every draw and every mutation is valid by construction; nothing is drawn and rejected. `segments` says which graphs
there are. Sizes are drawn exactly uniformly from all combinations of (stack, expansion, experts) in the box: every
layer's choice inverts the distribution function of that uniform law, given the layers below it. The law needs only how
many ways there are to reach each total, which dynamic programming over the layers counts (`counting`).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import log
from typing import TypeVar

from search_spaces.architecture import DENSE, Architecture, ArchitectureError, Base, Experts, Genes
from search_spaces.cost import CLASSIFICATION, ffn_params, fixed_params
from search_spaces.counting import Box, Cost, add, count_rest, count_within, invert, position_of
from search_spaces.errors import UserError, shown
from search_spaces.grammar import Trial, choices_of, suggest_graph
from search_spaces.graph import GELU, FFNGraph
from search_spaces.operations import UNARY

# Of the steps to a neighbour, where both graphs and sizes vary, this share changes a graph.
GRAPH_STEPS = 1 / 3
# Random starts of the descent to the nearest member.
STARTS = 3
# Costs and lists of options are asked for again and again, of a few graphs; so many are kept.
KEPT = 16_384

GRAPHS, SIZES = "graphs", "sizes"

Key = TypeVar("Key")
Value = TypeVar("Value")


class SpaceError(UserError, ValueError):
    """The space is empty, or one of its settings makes no sense."""


@dataclass(frozen=True)
class Limit:
    """At most `most` of a cost that adds up: `fixed`, and `of(base, genes)` for every layer; whole numbers."""

    name: str
    fixed: int
    of: Callable[[Base, Genes], int]
    most: int

    def total(self, architecture: Architecture) -> int:
        """What an architecture costs."""
        return self.fixed + sum(self.of(architecture.base, genes) for genes in architecture.layers)


@dataclass(frozen=True)
class Space:
    """Architectures on `base` with `min_params` to `max_params` parameters (`cost.params` with `labels` and `head`).

    `graph` is the base graph, an activation between the linear maps; `edit_rate` is the probability with
    which a segment differs from it in `sample`. `limits` bound further costs. With `gated`, graphs may have a second
    linear map beside `expand`. A layer has any of `stacks`, `expansions` and `experts` that go together (`sizes`).

    With `start`, draws stay near that architecture's graphs, and `vary` says what differs from it at all:
    `{"graphs"}` keeps its stacks, expansions and experts, which need not be among those of the space; `{"sizes"}`
    keeps its graphs.

    A graph that combines different widths costs less ("narrow") or more ("wide") than the base graph. Where a
    drawn graph would leave no sizes inside the box, its layer keeps the base graph (or the start's); this needs a
    box tight enough that the layers above cannot make up for it.

    Raises SpaceError, among others if no architecture of base graphs lies in the box.
    """

    base: Base
    stacks: tuple[int, ...]
    expansions: tuple[Fraction, ...]
    min_params: int
    max_params: int
    edit_rate: float = 0.25
    labels: int = 3
    graph: FFNGraph = GELU
    gated: bool = False
    limits: tuple[Limit, ...] = ()
    start: Architecture | None = None
    vary: frozenset[str] = frozenset({GRAPHS, SIZES})
    experts: tuple[Experts, ...] = (DENSE,)
    head: str = CLASSIFICATION

    def __post_init__(self) -> None:
        if self._activation not in UNARY:
            raise SpaceError(f"graph: must be 'project(<activation>(expand(x)))', not '{self.graph}'")
        for name in ("stacks", "expansions", "experts"):
            choices = getattr(self, name)
            if not choices or len(set(choices)) < len(choices):
                raise SpaceError(f"{name}: must be different values, at least one, not {shown(choices)}")
        if not 0 <= self.edit_rate <= 1:
            raise SpaceError(f"edit_rate: must be from 0 to 1, not {self.edit_rate}")
        if not self.vary or not self.vary <= {GRAPHS, SIZES}:
            raise SpaceError(f"vary: must be graphs, sizes or both, not {shown(sorted(self.vary))}")
        if self.start is None and self.vary != {GRAPHS, SIZES}:
            raise SpaceError("vary: what does not vary needs a start to be taken from")
        if self.start is not None and self.start.base != self.base:
            raise SpaceError(f"start: is on another base, {self.start.base}, not {self.base}")
        try:
            for stack in self.stacks:
                for expansion in self.expansions:
                    Architecture.uniform(self.base, stack=stack, expansion=expansion)
        except ArchitectureError as error:
            raise SpaceError(f"stacks and expansions: {error}") from None
        if not self.sizes:
            least = min(self.expansions)
            fault = Genes(self.graph, 1, least, self.experts[0]).fault(self.base)
            raise SpaceError(f"expansions and experts: none go together; at {least}, {fault.removeprefix('experts: ')}")
        if self.min_params > self.max_params:
            raise SpaceError(f"min_params {self.min_params:,} is above max_params {self.max_params:,}")
        if not self.size_count():
            raise SpaceError(self._nothing_fits())

    def suggest(self, trial: Trial) -> Architecture:
        """The architecture that the trial's choices spell; any choices give a member of the space.

        Calls only `suggest_categorical`, always with the same choices for the same name, and `suggest_float`
        in [0, 1].
        """
        graphs = list(self._kept_graphs)
        costs = [self._costs(place, graph) for place, graph in enumerate(graphs)]
        if GRAPHS in self.vary:
            for place in range(self.base.depth):
                graph = suggest_graph(trial, _layer(place), self._activation, self.gated)
                own = self._costs(place, graph)
                # With the kept graphs in all layers to come there is a way to fill the box; it must stay so.
                if own == costs[place] or count_within([*costs[:place], own, *costs[place + 1 :]], self._ffn_box):
                    graphs[place], costs[place] = graph, own

        layers: list[Genes] = []
        left = self._ffn_box
        for place, graph in enumerate(graphs):
            options = self._options(place, graph)
            chosen = 0
            if len(options) > 1:
                chosen = invert(self._ways(costs, place, left), trial.suggest_float(f"{_layer(place)}/size", 0.0, 1.0))
            layers.append(options[chosen])
            left = left.less(costs[place][chosen])
        return Architecture(self.base, tuple(layers))

    def choices(self, architecture: Architecture) -> dict[str, str | float]:
        """The values of a trial's parameters with which `suggest` gives this architecture.

        Raises:
            SpaceError: no values do: it lies outside the box, or has a graph or size that the space does not.
        """
        if architecture not in self:
            raise SpaceError(f"the architecture is no member of the space: {self._why_not(architecture)}")
        result: dict[str, str | float] = {}
        graphs = [genes.graph for genes in architecture.layers]
        if GRAPHS in self.vary:
            for place, graph in enumerate(graphs):
                spelled = choices_of(graph, _layer(place), self.gated)
                assert spelled is not None  # it is a member
                result |= spelled
        costs = [self._costs(place, graph) for place, graph in enumerate(graphs)]
        left = self._ffn_box
        for place, genes in enumerate(architecture.layers):
            options = self._options(place, genes.graph)
            chosen = options.index(genes)
            if len(options) > 1:
                result[f"{_layer(place)}/size"] = position_of(self._ways(costs, place, left), chosen)
            left = left.less(costs[place][chosen])
        return result

    def __contains__(self, architecture: object) -> bool:
        return isinstance(architecture, Architecture) and not self._why_not(architecture)

    def keeps_budget(self, architecture: Architecture) -> bool:
        """Whether its costs lie in the box; its genes need not be the space's."""
        costs = [self._price(genes) for genes in architecture.layers]
        return add(*costs) in self._ffn_box

    def sample(self, rng: random.Random) -> Architecture:
        """A random architecture: sizes uniform in the box, graphs near the base graph (see `draw`)."""
        return self.suggest(_RandomTrial(self, rng))

    def draw(self, name: str, choices: Sequence[str], rng: random.Random) -> str:
        """One random choice for the parameter `name` of `suggest`.

        Operations keep the base graph's one, which is listed first, with probability 1 - edit_rate, and with a
        `start` all choices keep its; everything else is uniform.
        """
        usual = self._usual.get(name, choices[0] if name.endswith("/op") else None)
        if usual is None:
            return rng.choice(choices)
        others = [choice for choice in choices if choice != usual]
        return rng.choice(others) if rng.random() < self.edit_rate else usual

    def neighbours(self, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
        """Members one step away, in random order: one layer has another size or one choice of its graph is another.

        A step that leaves the box is made good by another size of a random second layer, where one fits. An
        architecture that is no member has its nearest member as the first neighbour, and that one's after it.
        """
        if architecture not in self:
            architecture = self.nearest(architecture)
            yield architecture
        kinds = [(self._size_steps(architecture, rng), 1 - GRAPH_STEPS)] if SIZES in self.vary else []
        if GRAPHS in self.vary:
            kinds.append((self._graph_steps(architecture, rng), GRAPH_STEPS))
        while kinds:
            steps = rng.choices([kind[0] for kind in kinds], [kind[1] for kind in kinds])[0]
            neighbour = next(steps, None)
            if neighbour is None:
                kinds = [kind for kind in kinds if kind[0] is not steps]
            else:
                yield neighbour

    def nearest(self, architecture: Architecture) -> Architecture:
        """A member like the given architecture of the same base, which may have any graphs and sizes.

        Graphs that the space cannot spell become the base graph (or the start's). Sizes descend from random ones
        to the least sum over layers of |log ratio| of all inner channels, |difference| of the stacks and, of experts,
        |log ratio| of the counts and 1 if they differ in anything, changing two layers at a time, so this is the
        nearest one or close to it.
        """
        wanted = architecture.layers
        graphs = tuple(
            genes.graph if GRAPHS in self.vary and self._has(genes.graph) else kept
            for genes, kept in zip(wanted, self._kept_graphs, strict=True)
        )
        costs = [self._costs(place, graph) for place, graph in enumerate(graphs)]
        if not count_within(costs, self._ffn_box):
            graphs = self._kept_graphs
            costs = [self._costs(place, graph) for place, graph in enumerate(graphs)]
        options = [self._options(place, graph) for place, graph in enumerate(graphs)]
        distances = [
            [self._distance(option, genes) for option in row] for row, genes in zip(options, wanted, strict=True)
        ]
        if self.base.depth == 1:
            inside = (option for option, cost in enumerate(costs[0]) if cost in self._ffn_box)
            best = [min(inside, key=distances[0].__getitem__)]
        else:
            starts = (self._random_sizes(costs, random.Random(seed)) for seed in range(STARTS))
            best = min(
                (_descend(chosen, costs, distances, self._ffn_box) for chosen in starts),
                key=lambda chosen: sum(row[option] for row, option in zip(distances, chosen, strict=True)),
            )
        layers = (row[option] for row, option in zip(options, best, strict=True))
        return Architecture(self.base, tuple(layers))

    @cached_property
    def sizes(self) -> tuple[tuple[int, Fraction, Experts], ...]:
        """All (stack, expansion, experts) that a layer can have: those with experts that the base has channels for."""
        sizes = product(self.stacks, self.expansions, self.experts)
        return tuple(size for size in sizes if not Genes(self.graph, *size).fault(self.base))

    def size_count(self) -> int:
        """The number of combinations of (stack, expansion, experts) in the box, with the base graph (or the start's) in
        every layer.
        """
        costs = [self._costs(place, graph) for place, graph in enumerate(self._kept_graphs)]
        return count_within(costs, self._ffn_box)

    @property
    def _activation(self) -> str:
        """The operation of the base graph, if it has the form that a base graph must have."""
        activation = self.graph.nodes[-2].op
        return activation if str(self.graph) == f"project({activation}(expand(x)))" else ""

    @cached_property
    def _kept_graphs(self) -> tuple[FFNGraph, ...]:
        """What every layer computes where nothing else is drawn: the start's graph, or the base graph where the
        space has no choices for that one.
        """
        if self.start is None:
            return (self.graph,) * self.base.depth
        graphs = (genes.graph for genes in self.start.layers)
        return tuple(graph if self._has(graph) or GRAPHS not in self.vary else self.graph for graph in graphs)

    def _has(self, graph: FFNGraph) -> bool:
        return choices_of(graph, "", self.gated) is not None

    @cached_property
    def _usual(self) -> dict[str, str]:
        """The choices that spell the start's graphs."""
        if self.start is None:
            return {}
        spelled = [choices_of(graph, _layer(place), self.gated) for place, graph in enumerate(self._kept_graphs)]
        return {name: choice for choices in spelled for name, choice in (choices or {}).items()}

    @cached_property
    def _ffn_box(self) -> Box:
        fixed = fixed_params(self.base, self.labels, self.head)
        most = (self.max_params - fixed, *(limit.most - limit.fixed for limit in self.limits))
        return Box(self.min_params - fixed, most)

    def _price(self, genes: Genes) -> Cost:
        return _kept(
            self._prices,
            genes,
            lambda: (ffn_params(self.base, genes), *(limit.of(self.base, genes) for limit in self.limits)),
        )

    @cached_property
    def _prices(self) -> dict[Genes, Cost]:
        return {}

    def _options(self, place: int, graph: FFNGraph) -> tuple[Genes, ...]:
        """All genes of a layer with this graph, cheapest first."""
        return self._menu(place, graph)[0]

    def _costs(self, place: int, graph: FFNGraph) -> tuple[Cost, ...]:
        return self._menu(place, graph)[1]

    def _menu(self, place: int, graph: FFNGraph) -> tuple[tuple[Genes, ...], tuple[Cost, ...]]:
        start = None if SIZES in self.vary else place
        return _kept(self._menus, (start, graph), lambda: self._new_menu(start, graph))

    @cached_property
    def _menus(self) -> dict[tuple[int | None, FFNGraph], tuple[tuple[Genes, ...], tuple[Cost, ...]]]:
        return {}

    def _new_menu(self, start: int | None, graph: FFNGraph) -> tuple[tuple[Genes, ...], tuple[Cost, ...]]:
        """All genes with this graph, cheapest first, and the costs of each; the sizes may be those of the start's."""
        if start is None:
            options = [Genes(graph, *size) for size in self.sizes]
        else:
            assert self.start is not None
            options = [replace(self.start.layers[start], graph=graph)]
        priced = [(self._price(genes), genes) for genes in options]
        priced.sort(key=lambda row: (row[0][0], row[1].stack, row[1].experts.count))
        return tuple(genes for _, genes in priced), tuple(cost for cost, _ in priced)

    def _ways(self, costs: Sequence[tuple[Cost, ...]], place: int, left: Box) -> list[int]:
        """For each option of a layer, in how many ways the layers above it can fill what is left of the box."""
        rest = tuple(sorted(costs[place + 1 :]))
        return [count_rest(rest, left.less(cost), self._ffn_box.high) for cost in costs[place]]

    def _random_sizes(self, costs: Sequence[tuple[Cost, ...]], rng: random.Random) -> list[int]:
        chosen: list[int] = []
        left = self._ffn_box
        for place, row in enumerate(costs):
            chosen.append(invert(self._ways(costs, place, left), rng.random()))
            left = left.less(row[chosen[-1]])
        return chosen

    def _distance(self, option: Genes, wanted: Genes) -> float:
        channels = (genes.stack * genes.inner(self.base) for genes in (option, wanted))
        ours, theirs = option.experts, wanted.experts
        experts = abs(log(ours.count / theirs.count)) + (ours != theirs)
        return abs(log(next(channels) / next(channels))) + abs(option.stack - wanted.stack) + experts

    def _size_steps(self, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
        steps = [
            (place, genes)
            for place, old in enumerate(architecture.layers)
            for genes in self._options(place, old.graph)
            if genes != old
        ]
        rng.shuffle(steps)
        for place, genes in steps:
            yield from self._made_good(architecture, place, genes, rng)

    def _graph_steps(self, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
        rows = []
        for place, genes in enumerate(architecture.layers):
            spelled = choices_of(genes.graph, _layer(place), self.gated)
            assert spelled is not None  # it is a member
            asked = _Edited(spelled, "", "", rng)
            suggest_graph(asked, _layer(place), self._activation, self.gated)
            rows += [
                (place, spelled, name, choice)
                for name, choices in asked.seen.items()
                for choice in choices
                if choice != spelled[name]
            ]
        rng.shuffle(rows)
        for place, spelled, name, choice in rows:
            trial = _Edited(spelled, name, choice, rng)
            graph = suggest_graph(trial, _layer(place), self._activation, self.gated)
            if graph != architecture.layers[place].graph:
                yield from self._made_good(architecture, place, replace(architecture.layers[place], graph=graph), rng)

    def _made_good(
        self, architecture: Architecture, place: int, genes: Genes, rng: random.Random
    ) -> Iterator[Architecture]:
        """The architecture with these genes in one layer, and one other size elsewhere if the box asks for it."""
        layers = list(architecture.layers)
        layers[place] = genes
        changed = Architecture(self.base, tuple(layers))
        if self.keeps_budget(changed):
            yield changed
            return
        spent = add(*(self._price(one) for one in layers))
        fitting = []
        for other, old in enumerate(layers):
            if other == place:
                continue
            row = zip(self._options(other, old.graph), self._costs(other, old.graph), strict=True)
            left = self._ffn_box.less(spent).less(tuple(-cost for cost in self._price(old)))
            fitting += [(other, option) for option, cost in row if cost in left]
        if fitting:
            other, option = rng.choice(fitting)
            layers[other] = option
            yield Architecture(self.base, tuple(layers))

    def _why_not(self, architecture: Architecture) -> str:
        """In which respect the architecture is no member; empty if it is one."""
        if architecture.base != self.base:
            return "it is on another base"
        for place, genes in enumerate(architecture.layers):
            if genes not in self._options(place, genes.graph):
                size = f"stack {genes.stack}, expansion {genes.expansion}, experts: {genes.experts}"
                return f"layers[{place}] has {size}"
            if not (self._has(genes.graph) if GRAPHS in self.vary else genes.graph == self._kept_graphs[place]):
                return f"layers[{place}] has the graph {genes.graph}"
        return "" if self.keeps_budget(architecture) else "its costs lie outside the box"

    def _nothing_fits(self) -> str:
        rows = [self._costs(place, graph) for place, graph in enumerate(self._kept_graphs)]
        fixed = fixed_params(self.base, self.labels, self.head)
        smallest, largest = (fixed + sum(end(row)[0] for row in rows) for end in (min, max))
        message = (
            f"no architecture has {self.min_params:,} to {self.max_params:,} parameters: "
            f"this space reaches from {smallest:,} to {largest:,}"
        )
        if self.max_params < smallest:
            return f"{message}; raise max_params, or allow smaller expansions, smaller stacks or fewer experts"
        if self.min_params > largest:
            return f"{message}; lower min_params, or allow larger expansions, larger stacks or more experts"
        for number, limit in enumerate(self.limits, start=1):
            least = limit.fixed + sum(min(cost[number] for cost in row) for row in rows)
            if least > limit.most:
                return (
                    f"no architecture keeps to {limit.name} {limit.most:,}: the least of this space is {least:,}; "
                    f"raise max_{limit.name}, or allow smaller expansions, smaller stacks or fewer experts"
                )
        return f"{message}, but no size in between fits; widen the box"


def _kept(kept: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """The value of a key, which is made where there is none yet."""
    if key not in kept:
        if len(kept) >= KEPT:
            kept.clear()
        kept[key] = make()
    return kept[key]


def _layer(place: int) -> str:
    return f"layer{place + 1}"


def _descend(
    chosen: list[int], costs: Sequence[Sequence[Cost]], distances: Sequence[Sequence[float]], box: Box
) -> list[int]:
    """Change the options of at most two layers at a time, always to the least distance, while that helps."""
    while True:
        best, gain = None, 1e-9
        spent = add(*(row[option] for row, option in zip(costs, chosen, strict=True)))
        for i, left in enumerate(chosen):
            for j in range(i + 1, len(chosen)):
                right = chosen[j]
                # The box for the two layers, given all others.
                room = box.less(spent).less(tuple(-cost for cost in add(costs[i][left], costs[j][right])))
                now = distances[i][left] + distances[j][right]
                for a, first in enumerate(distances[i]):
                    if now - first <= gain:
                        continue
                    for b, second in enumerate(distances[j]):
                        if now - first - second > gain and add(costs[i][a], costs[j][b]) in room:
                            best, gain = (i, a, j, b), now - first - second
        if best is None:
            return chosen
        i, a, j, b = best
        chosen = [*chosen]
        chosen[i], chosen[j] = a, b


@dataclass(frozen=True)
class _RandomTrial:
    space: Space
    rng: random.Random

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return self.space.draw(name, choices, self.rng)

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return self.rng.uniform(low, high)


class _Edited:
    """Gives stored choices but one; what the edit leads to for the first time is drawn uniformly."""

    def __init__(self, choices: dict[str, str], name: str, choice: str, rng: random.Random) -> None:
        self.choices = choices | {name: choice}
        self.rng = rng
        self.seen: dict[str, Sequence[str]] = {}

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        self.seen[name] = choices
        stored = self.choices.get(name)
        return stored if stored is not None else self.rng.choice(choices)

    def suggest_float(self, name: str, low: float, high: float) -> float:
        raise AssertionError("a graph has no sizes")
