"""The spaces of the search: graph, stack, expansion and experts of every layer, or some of them, within a budget.

Every draw and every mutation is valid by construction; nothing is drawn and rejected. `grammar` says which graphs there
are. Sizes are drawn exactly uniformly from all combinations of (stack, expansion, experts) within the budget: each
layer's choice inverts the distribution function of that uniform law, given the layers below it. The law needs only the
number of ways to reach each total, which dynamic programming over the layers counts (`counting`).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import TypeVar

from search_spaces import neighbourhood
from search_spaces.architecture import DENSE, Architecture, ArchitectureError, Base, Experts, Genes
from search_spaces.cost import CLASSIFICATION, ffn_params, fixed_params
from search_spaces.counting import Bounds, Cost, add, count_rest, count_within, invert, position_of
from search_spaces.errors import UserError, shortened
from search_spaces.grammar import Trial, choices_of, suggest_graph
from search_spaces.graph import GELU, FFNGraph
from search_spaces.operations import UNARY

# A space caches the costs of so many genes, and the options of so many graphs.
CACHED = 16_384

GRAPHS, SIZES = "graphs", "sizes"

Key = TypeVar("Key")
Value = TypeVar("Value")


class SpaceError(UserError, ValueError):
    """The space is empty, or one of its settings makes no sense."""


@dataclass(frozen=True)
class Limit:
    """An upper bound `most` of a cost that adds up over the layers, in whole numbers.

    The cost of an architecture is `fixed` plus `of(base, genes)` of every layer.
    """

    name: str
    fixed: int
    of: Callable[[Base, Genes], int]
    most: int

    def total(self, architecture: Architecture) -> int:
        """The cost of an architecture."""
        return self.fixed + sum(self.of(architecture.base, genes) for genes in architecture.layers)


@dataclass(frozen=True)
class Space:
    """Architectures on `base` within a budget.

    Args:
        base: what all architectures share.
        stacks, expansions, experts: the sizes of a layer; any of them that go together (`sizes`).
        min_params, max_params: bounds of the parameters, `cost.params` with `labels` and `head`.
        edit_rate: the probability with which `sample` draws another operation than the base graph's.
        graph: the base graph, an activation between the linear maps.
        gated: whether graphs may have a second linear map beside `expand`.
        limits: bounds of further costs.
        start: an architecture near whose graphs draws stay.
        vary: what differs from `start` at all. `{"graphs"}` keeps its stacks, expansions and experts, which need not be
            among those of the space; `{"sizes"}` keeps its graphs.

    A graph that combines different widths costs less ("narrow") or more ("wide") than the base graph. Where a drawn
    graph would leave no sizes within the budget, its layer keeps the base graph (or the start's); that takes a budget
    so tight that the layers above cannot make up for it.

    Raises SpaceError, among others if no architecture of base graphs is within the budget.
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
        if self.activation not in UNARY:
            raise SpaceError(f"graph: must be 'project(<activation>(expand(x)))', not '{self.graph}'")
        for name in ("stacks", "expansions", "experts"):
            choices = getattr(self, name)
            if not choices or len(set(choices)) < len(choices):
                raise SpaceError(f"{name}: must be different values, at least one, not {shortened(choices)}")
        if not 0 <= self.edit_rate <= 1:
            raise SpaceError(f"edit_rate: must be from 0 to 1, not {self.edit_rate}")
        if not self.vary or not self.vary <= {GRAPHS, SIZES}:
            raise SpaceError(f"vary: must be graphs, sizes or both, not {shortened(sorted(self.vary))}")
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

        Calls only `suggest_categorical`, always with the same choices for the same name, and `suggest_float` in [0, 1].
        """
        graphs = list(self.start_graphs)
        costs = [self.costs(layer, graph) for layer, graph in enumerate(graphs)]
        if self.varies_graphs:
            for layer in range(self.base.depth):
                graph = suggest_graph(trial, _layer_name(layer), self.activation, self.gated)
                row = self.costs(layer, graph)
                # With the start's graphs in all layers to come, some sizes are within the budget; that must stay so.
                if row == costs[layer] or count_within([*costs[:layer], row, *costs[layer + 1 :]], self.bounds):
                    graphs[layer], costs[layer] = graph, row

        layers: list[Genes] = []
        bounds = self.bounds
        for layer, graph in enumerate(graphs):
            options = self.options(layer, graph)
            chosen = 0
            if len(options) > 1:
                position = trial.suggest_float(f"{_layer_name(layer)}/size", 0.0, 1.0)
                chosen = invert(self._ways(costs, layer, bounds), position)
            layers.append(options[chosen])
            bounds = bounds.without(costs[layer][chosen])
        return Architecture(self.base, tuple(layers))

    def choices(self, architecture: Architecture) -> dict[str, str | float]:
        """The values of a trial's parameters with which `suggest` gives this architecture.

        Raises:
            SpaceError: no values do: it is outside the budget, or has a graph or size that the space does not have.
        """
        if architecture not in self:
            raise SpaceError(f"the architecture is no member of the space: {self._why_not(architecture)}")
        result: dict[str, str | float] = {}
        graphs = [genes.graph for genes in architecture.layers]
        if self.varies_graphs:
            for layer, graph in enumerate(graphs):
                spelled = choices_of(graph, _layer_name(layer), self.gated)
                assert spelled is not None  # it is a member
                result |= spelled
        costs = [self.costs(layer, graph) for layer, graph in enumerate(graphs)]
        bounds = self.bounds
        for layer, genes in enumerate(architecture.layers):
            options = self.options(layer, genes.graph)
            chosen = options.index(genes)
            if len(options) > 1:
                result[f"{_layer_name(layer)}/size"] = position_of(self._ways(costs, layer, bounds), chosen)
            bounds = bounds.without(costs[layer][chosen])
        return result

    def __contains__(self, architecture: object) -> bool:
        return isinstance(architecture, Architecture) and not self._why_not(architecture)

    def keeps_budget(self, architecture: Architecture) -> bool:
        """Whether its costs are within the budget; its genes need not be the space's."""
        return add(*(self.cost(genes) for genes in architecture.layers)) in self.bounds

    def sample(self, rng: random.Random) -> Architecture:
        """A random architecture: sizes uniform within the budget, graphs near the base graph (see `draw`)."""
        return self.suggest(_RandomTrial(self, rng))

    def draw(self, name: str, choices: Sequence[str], rng: random.Random) -> str:
        """One random choice for the parameter `name` of `suggest`.

        An operation is the base graph's, which is listed first, with probability 1 - edit_rate; with a `start`, so is
        every choice the start's. All other choices are uniform.
        """
        usual = self._start_choices.get(name, choices[0] if name.endswith("/op") else None)
        if usual is None:
            return rng.choice(choices)
        others = [choice for choice in choices if choice != usual]
        return rng.choice(others) if rng.random() < self.edit_rate else usual

    def neighbours(self, architecture: Architecture, rng: random.Random) -> Iterator[Architecture]:
        """Members one step away, in random order: one layer has another size or one choice of its graph is another.

        A step that leaves the budget is made good by another size of a random second layer, where one fits. An
        architecture that is no member has its nearest member as the first neighbour, and that one's neighbours follow.
        """
        return neighbourhood.neighbours(self, architecture, rng)

    def nearest(self, architecture: Architecture) -> Architecture:
        """A member like the given architecture of the same base, which may have any graphs and sizes.

        Graphs that the space cannot spell become the base graph (or the start's). Sizes descend from random ones to the
        least sum of the layers' `neighbourhood.distance`, two layers at a time, so the member is the nearest one or
        close to it.
        """
        return neighbourhood.nearest(self, architecture)

    @cached_property
    def sizes(self) -> tuple[tuple[int, Fraction, Experts], ...]:
        """All (stack, expansion, experts) that a layer can have: those with experts that the base has channels for."""
        sizes = product(self.stacks, self.expansions, self.experts)
        return tuple(size for size in sizes if not Genes(self.graph, *size).fault(self.base))

    def size_count(self) -> int:
        """The number of combinations of (stack, expansion, experts) within the budget, with the base graph (or the
        start's) in every layer.
        """
        costs = [self.costs(layer, graph) for layer, graph in enumerate(self.start_graphs)]
        return count_within(costs, self.bounds)

    @property
    def varies_graphs(self) -> bool:
        """Whether members differ in their graphs."""
        return GRAPHS in self.vary

    @property
    def varies_sizes(self) -> bool:
        """Whether members differ in their stacks, expansions and experts."""
        return SIZES in self.vary

    @property
    def activation(self) -> str:
        """The activation of the base graph; empty if that has another form than a base graph must have."""
        activation = self.graph.nodes[-2].op
        return activation if str(self.graph) == f"project({activation}(expand(x)))" else ""

    @cached_property
    def start_graphs(self) -> tuple[FFNGraph, ...]:
        """Every layer's graph where nothing else is drawn: the start's, or the base graph where the space cannot spell
        that one.
        """
        if self.start is None:
            return (self.graph,) * self.base.depth
        graphs = (genes.graph for genes in self.start.layers)
        return tuple(graph if self.spells(graph) or not self.varies_graphs else self.graph for graph in graphs)

    def spells(self, graph: FFNGraph) -> bool:
        """Whether some choices give this graph."""
        return choices_of(graph, "", self.gated) is not None

    @cached_property
    def bounds(self) -> Bounds:
        """The bounds of the layers' summed costs: parameters, and the cost of every limit."""
        fixed = fixed_params(self.base, self.labels, self.head)
        most = (self.max_params - fixed, *(limit.most - limit.fixed for limit in self.limits))
        return Bounds(self.min_params - fixed, most)

    def cost(self, genes: Genes) -> Cost:
        """What a layer adds to each entry of `bounds`."""
        return _cached(
            self._cost_of_genes,
            genes,
            lambda: (ffn_params(self.base, genes), *(limit.of(self.base, genes) for limit in self.limits)),
        )

    def options(self, layer: int, graph: FFNGraph) -> tuple[Genes, ...]:
        """All genes that a layer can have with this graph, cheapest first."""
        return self.options_and_costs(layer, graph)[0]

    def costs(self, layer: int, graph: FFNGraph) -> tuple[Cost, ...]:
        """The costs of a layer's `options`."""
        return self.options_and_costs(layer, graph)[1]

    def draw_sizes(self, costs: Sequence[tuple[Cost, ...]], random_position: Callable[[], float]) -> list[int]:
        """One option of every layer, uniform within the budget where positions are uniform from 0 to 1."""
        chosen: list[int] = []
        bounds = self.bounds
        for layer, row in enumerate(costs):
            chosen.append(invert(self._ways(costs, layer, bounds), random_position()))
            bounds = bounds.without(row[chosen[-1]])
        return chosen

    @cached_property
    def _start_choices(self) -> dict[str, str]:
        """The choices that spell the start's graphs."""
        if self.start is None:
            return {}
        spelled = [choices_of(graph, _layer_name(layer), self.gated) for layer, graph in enumerate(self.start_graphs)]
        return {name: choice for choices in spelled for name, choice in (choices or {}).items()}

    @cached_property
    def _cost_of_genes(self) -> dict[Genes, Cost]:
        return {}

    @cached_property
    def _options_of_graph(self) -> dict[tuple[int | None, FFNGraph], tuple[tuple[Genes, ...], tuple[Cost, ...]]]:
        return {}

    def options_and_costs(self, layer: int, graph: FFNGraph) -> tuple[tuple[Genes, ...], tuple[Cost, ...]]:
        """A layer's `options` and their `costs`; a space with fewer options of a layer overrides this."""
        # Where sizes vary, all layers have the same options.
        fixed_layer = None if self.varies_sizes else layer
        return _cached(self._options_of_graph, (fixed_layer, graph), lambda: self._new_options(fixed_layer, graph))

    def _new_options(self, fixed_layer: int | None, graph: FFNGraph) -> tuple[tuple[Genes, ...], tuple[Cost, ...]]:
        if fixed_layer is None:
            options = [Genes(graph, *size) for size in self.sizes]
        else:
            assert self.start is not None
            options = [replace(self.start.layers[fixed_layer], graph=graph)]
        priced = [(self.cost(genes), genes) for genes in options]
        priced.sort(key=lambda row: (row[0][0], row[1].stack, row[1].experts.count))
        return tuple(genes for _, genes in priced), tuple(cost for cost, _ in priced)

    def _ways(self, costs: Sequence[tuple[Cost, ...]], layer: int, bounds: Bounds) -> list[int]:
        """For each option of a layer, in how many ways the layers above it can stay within the rest of the bounds."""
        above = tuple(sorted(costs[layer + 1 :]))
        return [count_rest(above, bounds.without(cost), self.bounds.high) for cost in costs[layer]]

    def _why_not(self, architecture: Architecture) -> str:
        """In which respect the architecture is no member; empty if it is one."""
        if architecture.base != self.base:
            return "it is on another base"
        for layer, genes in enumerate(architecture.layers):
            if genes not in self.options(layer, genes.graph):
                size = f"stack {genes.stack}, expansion {genes.expansion}, experts: {genes.experts}"
                return f"layers[{layer}] has {size}"
            if not (self.spells(genes.graph) if self.varies_graphs else genes.graph == self.start_graphs[layer]):
                return f"layers[{layer}] has the graph {genes.graph}"
        return "" if self.keeps_budget(architecture) else "its costs are outside the budget"

    def _nothing_fits(self) -> str:
        rows = [self.costs(layer, graph) for layer, graph in enumerate(self.start_graphs)]
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
        return f"{message}, but no size in between fits; lower min_params or raise max_params"


def _cached(cache: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """The cached value of a key, which is made if there is none."""
    if key not in cache:
        if len(cache) >= CACHED:
            cache.clear()
        cache[key] = make()
    return cache[key]


def _layer_name(layer: int) -> str:
    return f"layer{layer + 1}"


@dataclass(frozen=True)
class _RandomTrial:
    space: Space
    rng: random.Random

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return self.space.draw(name, choices, self.rng)

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return self.rng.uniform(low, high)
