"""Search spaces: graph, stack, expansion and experts of every layer, or some of these, and the numbers of experts in
attention and head, within a budget.

Every sample and every mutation is valid by construction, without rejection sampling. `grammar` defines the graphs.
Sizes, the combinations of (stack, expansion, experts) of all layers, together with the numbers of experts in attention
and head, are sampled exactly uniformly from those within the budget: first these numbers and then layer by layer, a
uniform number is mapped through the inverse of the conditional distribution function, given what was chosen before.
This only needs the number of ways to reach each total cost, which dynamic programming counts (`counting`).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import TypeVar

from search_spaces.architecture import DENSE, Architecture, Experts, Genes
from search_spaces.base import Base
from search_spaces.cost import CLASSIFIER, HeadCost, ffn_params, fixed_params
from search_spaces.counting import Bounds, Cost, add, count_rest, count_within, invert, position_of
from search_spaces.errors import UserError, shortened
from search_spaces.grammar import choices_of, suggest_graph
from search_spaces.graph import GELU, FFNGraph
from search_spaces.limits import Limit
from search_spaces.operations import UNARY
from search_spaces.reasons import nothing_fits, sizes_problem
from search_spaces.spelling import RandomTrial, Trial
from search_spaces.trees import MAX_HEIGHT, MIN_HEIGHT
from search_spaces.variants import EXPERT_FIELDS, are_variants, draw, expert_choices, positions, variants

GRAPHS, SIZES = "graphs", "sizes"
# The number of entries at which a cache of a space is emptied.
CACHED = 16_384

Key = TypeVar("Key")
Value = TypeVar("Value")


class SpaceError(UserError, ValueError):
    """The space is empty, one of its settings is invalid, or an architecture is outside of it."""


@dataclass(frozen=True)
class Space:
    """All architectures on `base` within a budget.

    Args:
        base: the part that all architectures have in common, apart from the numbers of experts in attention and head;
            baselines have those of `base`.
        stacks, expansions, experts: the choices for each layer; all compatible combinations are allowed (`sizes`). A
            stack of 0 is a layer without an FFN, which has no other choices.
        min_params, max_params: bounds on the number of parameters, `cost.params` with `labels` and `head`.
        edit_rate: the probability with which `sample` draws an operation other than the base graph's.
        graph: the base graph, an activation between the linear maps.
        gated: whether graphs may have a second linear map beside `expand`.
        max_height: the largest height of graphs as trees, from 3 to 7, whose binary operations may be nested
            (`search_spaces.trees`). None: a segment of a graph has at most one binary operation.
        limits: bounds on further costs.
        start: an architecture; samples stay close to its graphs.
        vary: which genes may differ from those of `start`. `{"graphs"}` keeps its stacks, expansions and experts, also
            those of attention and head, which need not be among those of the space; `{"sizes"}` keeps its graphs.
        attention_experts, head_experts: the choices for these fields of the base, that of `base` among them; empty: no
            other choice. They count among the sizes.

    A graph that combines values of different widths costs less ("narrow") or more ("wide") than the base graph. If no
    sizes would fit the budget with a sampled graph, its layer keeps the base graph (or the start's). This only happens
    if the budget is so tight that the layers above cannot compensate.

    Raises:
        SpaceError: a setting is invalid, or no architecture of base graphs (or the start's) is within the budget.
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
    head: HeadCost = CLASSIFIER
    max_height: int | None = None
    attention_experts: tuple[int, ...] = ()
    head_experts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.activation not in UNARY:
            raise SpaceError(f"graph: must be 'project(<activation>(expand(x)))', not '{self.graph}'")
        for name in ("stacks", "expansions", "experts"):
            choices = getattr(self, name)
            if not choices or len(set(choices)) < len(choices):
                raise SpaceError(f"{name}: must be one or more distinct values, not {shortened(choices)}")
        if self.max_height is not None and not MIN_HEIGHT <= self.max_height <= MAX_HEIGHT:
            raise SpaceError(f"max_height: must be from {MIN_HEIGHT} to {MAX_HEIGHT}, not {self.max_height}")
        if not 0 <= self.edit_rate <= 1:
            raise SpaceError(f"edit_rate: must be from 0 to 1, not {self.edit_rate}")
        if not self.vary or not self.vary <= {GRAPHS, SIZES}:
            raise SpaceError(f"vary: must be graphs, sizes or both, not {shortened(sorted(self.vary))}")
        if self.start is None and self.vary != {GRAPHS, SIZES}:
            raise SpaceError("vary: without a start, both graphs and sizes must vary; give a start, or leave out vary")
        for name in EXPERT_FIELDS:
            given, own = getattr(self, name), getattr(self.base, name)
            if given and (len(set(given)) < len(given) or own not in given):
                raise SpaceError(
                    f"{name}: must be distinct numbers, the base's {own} among them, not {shortened(given)}"
                )
        if self.start is not None and not are_variants(self.base, self.start.base):
            raise SpaceError(f"start: its base differs from the space's in {self.start.base.differences(self.base)}")
        if problem := sizes_problem(self.base, self.graph, self.stacks, self.expansions, self.experts):
            raise SpaceError(problem)
        if self.min_params > self.max_params:
            raise SpaceError(f"min_params {self.min_params:,} is above max_params {self.max_params:,}")
        if not self.size_count():
            costs = [self.costs(layer, graph) for layer, graph in enumerate(self.start_graphs)]
            fixed = [fixed_params(base, self.labels, self.head) for base in self.bases]
            limits = [(limit, [limit.fixed_on(base) for base in self.bases]) for limit in self.limits]
            raise SpaceError(nothing_fits(self.min_params, self.max_params, costs, fixed, limits))

    def suggest(self, trial: Trial) -> Architecture:
        """The architecture that a trial's choices define; any choices give a member of the space.

        Only calls `suggest_categorical`, always with the same choices for the same name, and `suggest_float` in [0, 1].
        """
        graphs = list(self.start_graphs)
        costs = [self.costs(layer, graph) for layer, graph in enumerate(graphs)]
        for layer in range(self.base.depth):
            if self._chooses_graph(layer):
                graph = self.suggest_graph(trial, _layer_name(layer))
                row = self.costs(layer, graph)
                # Invariant: with the start's graphs in all remaining layers, some sizes fit the budget.
                if row == costs[layer] or any(self.count_on([*costs[:layer], row, *costs[layer + 1 :]])):
                    graphs[layer], costs[layer] = graph, row

        base = self.bases[0]
        if len(self.bases) > 1:
            base = draw(self.bases, self.count_on(costs), lambda name: trial.suggest_float(name, 0.0, 1.0))
        layers: list[Genes] = []
        bounds = self.bounds_on(base)
        for layer, graph in enumerate(graphs):
            options = self.options(layer, graph)
            chosen = 0
            if len(options) > 1:
                position = trial.suggest_float(f"{_layer_name(layer)}/size", 0.0, 1.0)
                chosen = invert(self._ways(costs, layer, bounds), position)
            layers.append(options[chosen])
            bounds = bounds.without(costs[layer][chosen])
        return Architecture(base, tuple(layers))

    def choices(self, architecture: Architecture) -> dict[str, str | float]:
        """The values of a trial's parameters for which `suggest` returns this architecture.

        Raises:
            SpaceError: there are none: it is outside the budget, or has a graph or size that is not in the space.
        """
        if reason := self._why_not(architecture):
            raise SpaceError(f"the architecture is not a member of the space: {reason}")
        result: dict[str, str | float] = {}
        graphs = [self.graph_of(layer, genes) for layer, genes in enumerate(architecture.layers)]
        for layer, graph in enumerate(graphs):
            if self._chooses_graph(layer):
                spelled = self.choices_of_graph(graph, _layer_name(layer))
                assert spelled is not None  # it is a member
                result |= spelled
        costs = [self.costs(layer, graph) for layer, graph in enumerate(graphs)]
        if len(self.bases) > 1:
            result |= positions(self.bases, self.count_on(costs), architecture.base)
        bounds = self.bounds_on(architecture.base)
        for layer, genes in enumerate(architecture.layers):
            options = self.options(layer, graphs[layer])
            chosen = options.index(genes)
            if len(options) > 1:
                result[f"{_layer_name(layer)}/size"] = position_of(self._ways(costs, layer, bounds), chosen)
            bounds = bounds.without(costs[layer][chosen])
        return result

    def __contains__(self, architecture: object) -> bool:
        return isinstance(architecture, Architecture) and not self._why_not(architecture)

    def keeps_budget(self, architecture: Architecture) -> bool:
        """Whether the architecture's costs are within the budget; its genes need not be in the space."""
        return add(*(self.cost(genes) for genes in architecture.layers)) in self.bounds_on(architecture.base)

    def sample(self, rng: random.Random) -> Architecture:
        """A random architecture: sizes uniform within the budget, graphs near the base graph (see `draw`)."""
        return self.suggest(RandomTrial(self.draw, rng))

    def draw(self, name: str, choices: Sequence[str], rng: random.Random) -> str:
        """One random choice for the parameter `name` of `suggest`.

        With probability 1 - edit_rate an operation is the base graph's, which is the first of `choices`; if there is a
        `start`, this applies to every choice of a graph, and the start's is taken. Otherwise the choice is uniform.
        """
        default = self._start_choices.get(name, choices[0] if name.endswith("/op") else None)
        if default is None:
            return rng.choice(choices)
        others = [choice for choice in choices if choice != default]
        return rng.choice(others) if rng.random() < self.edit_rate else default

    @cached_property
    def sizes(self) -> tuple[tuple[int, Fraction, Experts], ...]:
        """All combinations of (stack, expansion, experts) for which the base has enough channels; without an FFN there
        is only (0, 1, dense).
        """
        layers = (Genes(self.graph, *size) for size in product(self.stacks, self.expansions, self.experts))
        sizes = ((genes.stack, genes.expansion, genes.experts) for genes in layers if not genes.problem(self.base))
        return tuple(dict.fromkeys(sizes))

    def size_count(self) -> int:
        """The number of ways to choose the sizes of all layers and the experts in attention and head within the budget,
        with the base graph (or the start's) in every layer.
        """
        return sum(self.count_on([self.costs(layer, graph) for layer, graph in enumerate(self.start_graphs)]))

    def count_on(self, costs: Sequence[tuple[Cost, ...]]) -> list[int]:
        """For each of the `bases`, the number of ways to choose the sizes of layers with these costs."""
        return [count_within(costs, self.bounds_on(base)) for base in self.bases]

    @property
    def varies_graphs(self) -> bool:
        """Whether graphs are searched."""
        return GRAPHS in self.vary

    @property
    def varies_sizes(self) -> bool:
        """Whether stacks, expansions and experts are searched."""
        return SIZES in self.vary

    @property
    def activation(self) -> str:
        """The activation of the base graph; empty if the graph does not have the form of a base graph."""
        activation = self.graph.nodes[-2].op
        return activation if str(self.graph) == f"project({activation}(expand(x)))" else ""

    @cached_property
    def start_graphs(self) -> tuple[FFNGraph, ...]:
        """Every layer's default graph: the start's, or the base graph if there is no start, or the start has no FFN
        there or a graph outside the space.
        """
        if self.start is None:
            return (self.graph,) * self.base.depth
        return tuple(
            genes.graph if genes.stack and (self.spells(genes.graph) or not self.varies_graphs) else self.graph
            for genes in self.start.layers
        )

    def graph_of(self, layer: int, genes: Genes) -> FFNGraph:
        """The graph of a layer, or the default one of a layer that has no FFN."""
        return genes.graph if genes.stack else self.start_graphs[layer]

    def spells(self, graph: FFNGraph) -> bool:
        """Whether the space's grammar can express this graph."""
        return self.choices_of_graph(graph, "") is not None

    def suggest_graph(self, trial: Trial, name: str) -> FFNGraph:
        """The graph that a trial's choices define; the names of their parameters start with `name`."""
        return suggest_graph(trial, name, self.activation, self.gated, self.max_height)

    def choices_of_graph(self, graph: FFNGraph, name: str) -> dict[str, str] | None:
        """The choices for which `suggest_graph` returns this graph; None if there are none."""
        return choices_of(graph, name, self.gated, self.max_height)

    @cached_property
    def bases(self) -> tuple[Base, ...]:
        """The bases of the members, which differ in the numbers of experts in attention and head."""
        if self.start is not None and not self.varies_sizes:
            return (self.start.base,)
        return variants(self.base, self.attention_experts, self.head_experts)

    @property
    def expert_counts(self) -> dict[str, tuple[int, ...]]:
        """The choices, in ascending order, for those of the numbers of experts in attention and head that vary."""
        return {name: values for name, values in expert_choices(self.bases).items() if len(values) > 1}

    def bounds_on(self, base: Base) -> Bounds:
        """The bounds on the summed costs of the layers: parameters, then the cost of every limit.

        Args:
            base: one that differs from `base` at most in the numbers of experts in attention and head.
        """
        return _cached(self._bounds, base, lambda: self._new_bounds(base))

    def _new_bounds(self, base: Base) -> Bounds:
        fixed = fixed_params(base, self.labels, self.head)
        high = (self.max_params - fixed, *(limit.maximum - limit.fixed_on(base) for limit in self.limits))
        return Bounds(self.min_params - fixed, high)

    def _chooses_graph(self, layer: int) -> bool:
        """Whether the graph of this layer is searched: not if it keeps the start's stack of 0."""
        if self.varies_sizes or self.start is None:
            return self.varies_graphs
        return self.start.layers[layer].stack > 0

    def cost(self, genes: Genes) -> Cost:
        """What a layer with these genes contributes to each entry of `bounds`."""
        return _cached(
            self._cost_of_genes,
            genes,
            lambda: (ffn_params(self.base, genes), *(limit.layer_cost(self.base, genes) for limit in self.limits)),
        )

    def options(self, layer: int, graph: FFNGraph) -> tuple[Genes, ...]:
        """All genes that a layer can have with this graph, cheapest first."""
        return self.options_and_costs(layer, graph)[0]

    def costs(self, layer: int, graph: FFNGraph) -> tuple[Cost, ...]:
        """The costs of a layer's `options`."""
        return self.options_and_costs(layer, graph)[1]

    def draw_sizes(
        self, costs: Sequence[tuple[Cost, ...]], bounds: Bounds, random_position: Callable[[], float]
    ) -> list[int]:
        """The index of one option per layer, uniform within the bounds if `random_position` is uniform in [0, 1]."""
        chosen: list[int] = []
        for layer, row in enumerate(costs):
            chosen.append(invert(self._ways(costs, layer, bounds), random_position()))
            bounds = bounds.without(row[chosen[-1]])
        return chosen

    @cached_property
    def _start_choices(self) -> dict[str, str]:
        """The choices that define the start's graphs."""
        if self.start is None:
            return {}
        spelled = [self.choices_of_graph(graph, _layer_name(layer)) for layer, graph in enumerate(self.start_graphs)]
        return {name: choice for choices in spelled for name, choice in (choices or {}).items()}

    @cached_property
    def _cost_of_genes(self) -> dict[Genes, Cost]:
        return {}

    @cached_property
    def _bounds(self) -> dict[Base, Bounds]:
        return {}

    @cached_property
    def _highest(self) -> Cost:
        """The upper bounds on the base that leaves most to the layers."""
        return tuple(map(max, zip(*(self.bounds_on(base).high for base in self.bases), strict=True)))

    @cached_property
    def _options_of_graph(self) -> dict[tuple[int | None, FFNGraph], tuple[tuple[Genes, ...], tuple[Cost, ...]]]:
        return {}

    def options_and_costs(self, layer: int, graph: FFNGraph) -> tuple[tuple[Genes, ...], tuple[Cost, ...]]:
        """A layer's `options` and their `costs`. Subclasses that restrict the options of a layer override this."""
        # If sizes are searched, all layers have the same options.
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
        """For each option of a layer, the number of ways in which the layers above it fit the remaining bounds."""
        above = tuple(sorted(costs[layer + 1 :]))
        return [count_rest(above, bounds.without(cost), self._highest) for cost in costs[layer]]

    def _why_not(self, architecture: Architecture) -> str:
        """The reason why the architecture is not a member; empty if it is one."""
        if not are_variants(self.base, architecture.base):
            return "it is on another base"
        if architecture.base not in self.bases:
            return "it has " + " and ".join(f"{name} {getattr(architecture.base, name)}" for name in EXPERT_FIELDS)
        for layer, genes in enumerate(architecture.layers):
            graph = self.graph_of(layer, genes)
            if genes not in self.options(layer, graph):
                size = f"stack {genes.stack}, expansion {genes.expansion}, experts: {genes.experts}"
                return f"layers[{layer}] has {size}"
            if not (self.spells(graph) if self.varies_graphs else graph == self.start_graphs[layer]):
                return f"layers[{layer}] has the graph {graph}"
        return "" if self.keeps_budget(architecture) else "its costs are outside the budget"


def _cached(cache: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """The cached value of a key; calls `make` if there is none."""
    if key not in cache:
        if len(cache) >= CACHED:
            cache.clear()
        cache[key] = make()
    return cache[key]


def _layer_name(layer: int) -> str:
    return f"layer{layer + 1}"
