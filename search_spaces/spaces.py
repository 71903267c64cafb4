"""Search spaces: the genes of all layers, of the prediction head and of the word embedding, or some, within a budget.

Every sample and every mutation is valid by construction, without rejection sampling. `grammar` defines the graphs.
Sizes, the combinations of all other genes (`genes.GENES`) of all parts, are sampled uniformly from those within the
budget (approximately if a part has more than 128): layer by layer, then for head and embedding, a uniform number is
mapped through the inverse of the conditional distribution function, given what was chosen before. This only needs the
number of ways to reach each total cost, which dynamic programming counts (`counting`).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from foundation.errors import UserError, shortened
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.cost import CLASSIFIER, HeadCost, embedding_params, head_params, layer_params
from search_spaces.counting import Bounds, Cost, add, count_each, count_within, invert, is_on_grid, position_of
from search_spaces.draws import NEAR, RELEASED, Draw, near, released
from search_spaces.genes import SIZE_GENES, Part, blocks_and_experts, genes_of, of_distinct_widths
from search_spaces.grammar import choices_of, suggest_graph
from search_spaces.graph import GELU, FFNGraph
from search_spaces.layer import FFN, Attention, Embedding, Layer, PredictionHead
from search_spaces.limits import Limit
from search_spaces.operations import UNARY
from search_spaces.reasons import no_fit_reason, no_size_reason, setting_reason
from search_spaces.spelling import GraphTrial, RandomTrial, Trial

GRAPHS, SIZES = "graphs", "sizes"
# The number of entries at which a cache of a space is emptied.
CACHED = 16_384

# Options for a part, and their costs.
Row = tuple[tuple[Any, ...], tuple[Cost, ...]]


class SpaceError(UserError, ValueError):
    """The space is empty, one of its settings is invalid, or an architecture is outside of it."""


@dataclass(frozen=True)
class Space:
    """All architectures on `base` within a budget.

    Args:
        base: what all architectures have in common.
        genes: the choices of each gene of `genes.GENES` but the graph, by its name; a gene that is left out has its
            default. All combinations that are compatible with each other are allowed (`sizes`). A stack of 0 is a layer
            without an FFN, for which the other genes of the FFN have no choices. Of expansions to the same whole number
            of channels only the first is a choice.
        min_params, max_params: bounds on the number of parameters, `cost.params` with `num_labels` and `head`.
        draws: how `sample` draws graphs, one of `draws.DRAWS`.
        mutation_rate: with "near", the probability of an operation other than the base graph's.
        graph: the base graph, an activation between the linear maps.
        gated: whether graphs may have a second linear map beside `expand`, which they must if `graph` has one.
        max_height: the largest height of graphs as trees, from 3 to 7, whose binary operations may be nested
            (`search_spaces.trees`). None: a segment of a graph has at most one binary operation.
        limits: bounds on further costs.
        start: an architecture; samples stay close to its graphs.
        vary: what may differ from `start`. `{"graphs"}` keeps its sizes, which need not be among those of the space;
            `{"sizes"}` keeps its graphs.
        num_labels, head: the number of labels and the kind of the head, by which `cost.params` counts the head.

    If a part has more than `counting.MANY` sizes, samples are only close to uniform, and there is no lower bound.
    A graph that combines values of different widths costs less ("narrow") or more ("wide") than the base graph. If no
    sizes would fit the budget with a sampled graph, its layer keeps the base graph (or the start's). This only happens
    if the budget is so tight that the layers above cannot compensate.

    Raises:
        SpaceError: a setting is invalid, or no architecture of base graphs (or the start's) is within the budget.
    """

    base: Base
    genes: Mapping[str, Sequence[Any]] = field(hash=False)
    min_params: int
    max_params: int
    mutation_rate: float = 0.25
    num_labels: int = 3
    graph: FFNGraph = GELU
    gated: bool = False
    limits: tuple[Limit, ...] = ()
    start: Architecture | None = None
    vary: frozenset[str] = frozenset({GRAPHS, SIZES})
    head: HeadCost = CLASSIFIER
    max_height: int | None = None
    draws: str = NEAR

    def __post_init__(self) -> None:
        if self.activation not in UNARY:
            forms = "'project(<activation>(expand(x)))' or 'project(mul(<activation>(expand(x)),gate(x)))'"
            raise SpaceError(f"graph: must be {forms}, not '{self.graph}'")
        if reason := setting_reason(self.genes, self.max_height, self.mutation_rate):
            raise SpaceError(reason)
        defaults = {name: (gene.default(self.base),) for name, gene in SIZE_GENES.items()}
        object.__setattr__(self, "genes", {**defaults, **{name: tuple(some) for name, some in self.genes.items()}})
        if not self.vary or not self.vary <= {GRAPHS, SIZES}:
            raise SpaceError(f"vary: must be graphs, sizes or both, not {shortened(sorted(self.vary))}")
        if self.start is None and self.vary != {GRAPHS, SIZES}:
            raise SpaceError("vary: without a start, both graphs and sizes must vary; give a start, or leave out vary")
        if self.start is not None and self.start.base != self.base:
            raise SpaceError(f"start: its base differs from the space's in {self.start.base.differences(self.base)}")
        if self.varies_graphs and not self.can_express(self.graph):
            raise SpaceError(f"graph: '{self.graph}' is not in the space: set gated = true, or raise max_height")
        if reason := no_size_reason(self.base, self.graph, self.genes):
            raise SpaceError(reason)
        expansions = of_distinct_widths(self.genes["expansion"], self.base)
        object.__setattr__(self, "genes", {**self.genes, "expansion": expansions})
        if self.min_params > self.max_params:
            raise SpaceError(f"min_params = {self.min_params:,} must be at most max_params = {self.max_params:,}")
        _, costs = self.options_of_parts(self.start_graphs)
        if self.bounds.low > sum(min(row)[0] for row in costs) and is_on_grid(costs, self.bounds.high):
            raise SpaceError(
                f"min_params: with {max(map(len, costs)):,} options in each of {self.base.depth} layers there can be "
                f"no lower bound of {self.min_params:,}; leave min_params out, set slack = 1, or allow fewer choices"
            )
        if not self.size_count():
            raise SpaceError(no_fit_reason(self.bounds, costs, self._fixed_params, self.limits))

    def suggest(self, trial: Trial) -> Architecture:
        """The architecture that a trial's choices define; any choices give a member of the space.

        Only calls `suggest_categorical`, always with the same choices for the same name, and `suggest_float` in [0, 1].
        """
        graphs = list(self.start_graphs)
        _, costs = self.options_of_parts(graphs)
        for layer in range(self.base.depth):
            if self._chooses_graph(layer):
                graph = self.suggest_graph(trial, self._name(layer))
                _, row = self._row(layer, graph)
                # Invariant: with the start's graphs in all remaining layers, some sizes fit the budget.
                if row == costs[layer] or count_within([*costs[:layer], row, *costs[layer + 1 :]], self.bounds):
                    graphs[layer], costs[layer] = graph, row
        sizes = self.draw_sizes(
            costs, self.bounds, lambda place: trial.suggest_float(f"{self._name(place)}/size", 0.0, 1.0)
        )
        return self.of_parts(
            [options[size] for options, size in zip(self.options_of_parts(graphs)[0], sizes, strict=True)]
        )

    def choices(self, architecture: Architecture) -> dict[str, str | float]:
        """The values of a trial's parameters for which `suggest` returns this architecture.

        Raises:
            SpaceError: there are none: it is outside the budget, or has a graph or size that is not in the space.
        """
        if reason := self._outside_reason(architecture):
            raise SpaceError(f"the architecture is not a member of the space: {reason}")
        result: dict[str, str | float] = {}
        graphs = self.graphs_of(architecture)
        for layer, graph in enumerate(graphs):
            if self._chooses_graph(layer):
                spelled = self.choices_of_graph(graph, self._name(layer))
                assert spelled is not None  # it is a member
                result |= spelled
        all_options, costs = self.options_of_parts(graphs)
        bounds = self.bounds
        for place, options in enumerate(all_options):
            chosen = options.index(architecture.parts[place])
            if len(options) > 1:
                result[f"{self._name(place)}/size"] = position_of(self._ways(costs, place, bounds), chosen)
            bounds = bounds.without(costs[place][chosen])
        return result

    def __contains__(self, architecture: object) -> bool:
        return isinstance(architecture, Architecture) and not self._outside_reason(architecture)

    def within_budget(self, architecture: Architecture) -> bool:
        """Whether the architecture's costs are within the budget; its parts need not be in the space."""
        return add(*map(self.cost, architecture.parts)) in self.bounds

    def sample(self, rng: random.Random) -> Architecture:
        """A random architecture: sizes uniform within the budget, graphs as `draws` says."""
        return self.suggest(RandomTrial(self.draw, rng))

    @property
    def draw(self) -> Draw:
        """A function that makes the random choices for the parameters of `suggest` for one architecture."""
        if self.draws == RELEASED:
            return released(self._start_choices, self.activation)
        return near(self._start_choices, self.mutation_rate)

    @cached_property
    def sizes(self) -> tuple[Layer, ...]:
        """All sizes of a layer for which the base has enough channels, with the base graph; without an FFN a layer has
        only the genes of its attention.
        """
        return self._combined(Layer(Attention(self.base.heads), FFN(self.graph)))

    @cached_property
    def head_sizes(self) -> tuple[PredictionHead, ...]:
        """All sizes of the prediction head."""
        return self._combined(PredictionHead())

    @cached_property
    def embedding_sizes(self) -> tuple[Embedding, ...]:
        """All sizes of the word embedding."""
        return self._combined(Embedding())

    def _combined(self, part: Any) -> tuple[Any, ...]:
        """The part with all valid combinations of its genes' choices, in the order of these."""
        genes = [gene for gene in genes_of(part).values() if gene.key]
        parts = []
        for values in product(*(self.genes[name] for name, gene in genes_of(part).items() if gene.key)):
            changed = part
            for gene, value in zip(genes, values, strict=True):
                changed = gene.replace(changed, value)
            if not isinstance(changed, Layer) or not changed.invalid_reason(self.base):
                parts.append(changed)
        return tuple(dict.fromkeys(parts))

    def varies(self, name: str) -> bool:
        """Whether a gene has several choices."""
        return self.varies_sizes and len(self.genes[name]) > 1

    def size_count(self) -> int:
        """The number of ways to choose all sizes within the budget, with the base graph (or the start's) everywhere."""
        return count_within(self.options_of_parts(self.start_graphs)[1], self.bounds)

    def of_parts(self, parts: Sequence[Part]) -> Architecture:
        """The architecture of these layers, this head and this embedding."""
        *layers, head, embedding = parts
        assert isinstance(head, PredictionHead) and isinstance(embedding, Embedding)
        return Architecture(self.base, tuple(part for part in layers if isinstance(part, Layer)), head, embedding)

    @property
    def varies_graphs(self) -> bool:
        """Whether graphs are searched."""
        return GRAPHS in self.vary

    @property
    def varies_sizes(self) -> bool:
        """Whether all other genes are searched."""
        return SIZES in self.vary

    @property
    def activation(self) -> str:
        """The activation of the base graph; empty if the graph does not have the form of a base graph."""
        return self.graph.activation

    @cached_property
    def start_graphs(self) -> tuple[FFNGraph, ...]:
        """Every layer's default graph: the start's, or the base graph if there is no start, or the start has no FFN
        there or a graph outside the space.
        """
        if self.start is None:
            return (self.graph,) * self.base.depth
        return tuple(
            ffn.graph if ffn.stack and (self.can_express(ffn.graph) or not self.varies_graphs) else self.graph
            for ffn in self.start.ffns
        )

    def graphs_of(self, architecture: Architecture) -> list[FFNGraph]:
        """The graphs that the layers have; for a layer without an FFN the default one."""
        pairs = zip(architecture.ffns, self.start_graphs, strict=True)
        return [ffn.graph if ffn.stack else start for ffn, start in pairs]

    def can_express(self, graph: FFNGraph) -> bool:
        """Whether the space's grammar can express this graph."""
        return self.choices_of_graph(graph, "") is not None

    def suggest_graph(self, trial: GraphTrial, name: str) -> FFNGraph:
        """The graph that a trial's choices define; the names of their parameters start with `name`."""
        return suggest_graph(trial, name, self.activation, self.gated, self.max_height)

    def choices_of_graph(self, graph: FFNGraph, name: str) -> dict[str, str] | None:
        """The choices for which `suggest_graph` returns this graph; None if there are none."""
        return choices_of(graph, name, self.gated, self.max_height)

    @cached_property
    def bounds(self) -> Bounds:
        """The bounds on the summed costs of all parts: parameters, then the cost of every limit."""
        fixed = self._fixed_params
        high = (self.max_params - fixed, *(limit.maximum - limit.fixed for limit in self.limits))
        return Bounds(self.min_params - fixed, high)

    @cached_property
    def _fixed_params(self) -> int:
        """Parameters of the smallest word embedding and of all else outside layers and prediction head."""
        return min(embedding_params(self.base, part) for part in self.embedding_sizes)

    def _chooses_graph(self, layer: int) -> bool:
        """Whether the graph of this layer is searched: not if it keeps the start's stack of 0."""
        if self.varies_sizes or self.start is None:
            return self.varies_graphs
        return self.start.ffns[layer].stack > 0

    def cost(self, part: Part) -> Cost:
        """What a part contributes to each entry of `bounds`."""
        cost: Cost = self._cached(part, lambda: self._new_cost(part))
        return cost

    def _new_cost(self, part: Part) -> Cost:
        if isinstance(part, PredictionHead):
            params = head_params(self.base, part, self.num_labels, self.head)
        elif isinstance(part, Embedding):
            params = embedding_params(self.base, part) - self._fixed_params
        else:
            params = layer_params(self.base, part)
        return (params, *(limit.cost(self.base, part) for limit in self.limits))

    def options(self, layer: int, graph: FFNGraph) -> tuple[Layer, ...]:
        """All that a layer can be with this graph, cheapest first."""
        return self._row(layer, graph)[0]

    def options_of_parts(self, graphs: Sequence[FFNGraph]) -> tuple[list[tuple[Part, ...]], list[tuple[Cost, ...]]]:
        """All that each layer can be with its graph, all heads and all embeddings, cheapest first; and their costs."""
        rows = [*(self._row(layer, graph) for layer, graph in enumerate(graphs)), *self._other_rows]
        return [options for options, _ in rows], [costs for _, costs in rows]

    def draw_sizes(
        self, costs: Sequence[tuple[Cost, ...]], bounds: Bounds, position: Callable[[int], float]
    ) -> list[int]:
        """The index of one option for each row, uniform within the bounds if `position` is uniform in [0, 1] for every
        row with several options.
        """
        chosen: list[int] = []
        for place, row in enumerate(costs):
            chosen.append(invert(self._ways(costs, place, bounds), position(place)) if len(row) > 1 else 0)
            bounds = bounds.without(row[chosen[-1]])
        return chosen

    @cached_property
    def _start_choices(self) -> dict[str, str]:
        """The choices that define the start's graphs."""
        if self.start is None:
            return {}
        spelled = [self.choices_of_graph(graph, self._name(layer)) for layer, graph in enumerate(self.start_graphs)]
        return {name: choice for choices in spelled for name, choice in (choices or {}).items()}

    @cached_property
    def _cache(self) -> dict[Any, Any]:
        return {}

    def _cached(self, key: object, make: Callable[[], Any]) -> Any:
        """The cached value of a key; calls `make` if there is none."""
        if key not in self._cache:
            if len(self._cache) >= CACHED:
                self._cache.clear()
            self._cache[key] = make()
        return self._cache[key]

    @cached_property
    def _other_rows(self) -> tuple[Row, Row]:
        """The rows of the head and of the embedding."""
        if self.start is not None and not self.varies_sizes:
            return self._priced((self.start.head,)), self._priced((self.start.embedding,))
        return self._priced(self.head_sizes), self._priced(self.embedding_sizes)

    def _row(self, layer: int, graph: FFNGraph) -> Row:
        """A layer's options with this graph, and their costs."""
        # If sizes are searched, all layers have the same options.
        kept = None if self.varies_sizes or self.start is None else self.start.layers[layer]
        layers = self.sizes if kept is None else (kept,)
        key = graph, kept
        row: Row = self._cached(
            key, lambda: self._priced([replace(layer, ffn=replace(layer.ffn, graph=graph)) for layer in layers])
        )
        return row

    def _priced(self, options: Sequence[Part]) -> Row:
        """The options and their costs, in the order of their parameters."""
        priced = [(self.cost(part), part) for part in options]
        priced.sort(key=lambda row: (row[0][0], *blocks_and_experts(row[1])))
        return tuple(part for _, part in priced), tuple(cost for cost, _ in priced)

    def _ways(self, costs: Sequence[tuple[Cost, ...]], place: int, bounds: Bounds) -> list[int]:
        """For each option of a row, the number of ways in which the rows after it fit the remaining bounds."""
        return count_each(costs[place], tuple(sorted(costs[place + 1 :])), bounds, self.bounds.high)

    def _outside_reason(self, architecture: Architecture) -> str:
        """The reason why the architecture is not a member; empty if it is one."""
        if architecture.base != self.base:
            return "it is on another base"
        graphs = self.graphs_of(architecture)
        for place, options in enumerate(self.options_of_parts(graphs)[0]):
            part = architecture.parts[place]
            if part not in options:
                sizes = ", ".join(f"{name} {gene.read(part)}" for name, gene in genes_of(part).items() if gene.key)
                return f"{f'layers[{place}]' if isinstance(part, Layer) else f'the {self._name(place)}'} has {sizes}"
        for layer, graph in enumerate(graphs):
            if not (self.can_express(graph) if self.varies_graphs else graph == self.start_graphs[layer]):
                return f"layers[{layer}] has the graph {graph}"
        return "" if self.within_budget(architecture) else "its costs are outside the budget"

    def _name(self, place: int) -> str:
        """The prefix of the parameters of a part."""
        others = ("head", "embedding")
        return f"layer{place + 1}" if place < self.base.depth else others[place - self.base.depth]
