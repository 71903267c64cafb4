"""The space of the coarse search: graph, stack and expansion of every layer, inside a box of parameters.

Every draw is valid by construction; nothing is drawn and rejected. A layer's graph is

    post(project(mid(expand(pre(x)))))

where each segment is one operation: nothing (not for `mid`), an activation, or a binary operation of the
segment's own value with any earlier value of the layer, each of them plain or activated, and the result plain
or activated. So `x` and intermediate results are reused, and what the rules of `breaks_rules` forbid cannot
be spelled.

Sizes are drawn exactly uniformly from all combinations of (stack, expansion) in the box: every layer's choice
inverts the distribution function of that uniform law, given the layers below it. The law needs only how many
ways there are to reach each total, which dynamic programming over the layers counts.
"""

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

from search_spaces.architecture import Architecture, ArchitectureError, Base, Genes
from search_spaces.cost import ffn_params, fixed_params
from search_spaces.graph import GELU, FFNGraph
from search_spaces.operations import BINARY, UNARY, shown

PLAIN = "plain"
ACTIVATIONS = (PLAIN, *UNARY)


class SpaceError(ValueError):
    """The space is empty, or one of its settings makes no sense."""


class Trial(Protocol):
    """The part of `optuna.Trial` that a space needs."""

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str: ...

    def suggest_float(self, name: str, low: float, high: float) -> float: ...


@dataclass(frozen=True)
class Space:
    """Architectures on `base` with `min_params` to `max_params` parameters (`cost.params` with `labels`).

    `graph` is the base graph, an activation between the linear maps; `edit_rate` is the probability with
    which a segment differs from it in `sample`.

    A graph that combines different widths costs less ("narrow") or more ("wide") than the base graph. Where a
    drawn graph would leave no sizes inside the box, its layer keeps the base graph; this needs a box tight
    enough that the layers above cannot make up for it.

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

    def __post_init__(self) -> None:
        if self._activation not in UNARY:
            raise SpaceError(f"graph: must be 'project(<activation>(expand(x)))', not '{self.graph}'")
        for name in ("stacks", "expansions"):
            choices = getattr(self, name)
            if not choices or len(set(choices)) < len(choices):
                raise SpaceError(f"{name}: must be different values, at least one, not {shown(choices)}")
        if not 0 <= self.edit_rate <= 1:
            raise SpaceError(f"edit_rate: must be from 0 to 1, not {self.edit_rate}")
        try:
            for stack in self.stacks:
                for expansion in self.expansions:
                    Architecture.uniform(self.base, stack=stack, expansion=expansion)
        except ArchitectureError as error:
            raise SpaceError(f"stacks and expansions: {error}") from None
        if self.min_params > self.max_params:
            raise SpaceError(f"min_params {self.min_params:,} is above max_params {self.max_params:,}")
        if not self.size_count():
            raise SpaceError(self._nothing_fits())

    def suggest(self, trial: Trial) -> Architecture:
        """The architecture that the trial's choices spell; any choices give a member of the space.

        Calls only `suggest_categorical`, always with the same choices for the same name, and `suggest_float`
        in [0, 1].
        """
        base_costs = self._costs(self.graph)
        graphs: list[FFNGraph] = []
        costs: list[tuple[int, ...]] = []
        for layer in range(1, self.base.depth + 1):
            graph = _suggest_graph(trial, f"layer{layer}", self._activation)
            own_costs = self._costs(graph)
            rest = [base_costs] * (self.base.depth - layer)
            # With base costs in all layers to come there is a way to fill the box; it must stay so.
            if own_costs != base_costs and not count_within([*costs, own_costs, *rest], *self._ffn_box):
                graph, own_costs = self.graph, base_costs
            graphs.append(graph)
            costs.append(own_costs)

        low, high = self._ffn_box
        layers: list[Genes] = []
        spent = 0
        for place, graph in enumerate(graphs):
            rest_costs = tuple(sorted(costs[place + 1 :]))
            spare = [(low - spent - cost, high - spent - cost) for cost in costs[place]]
            ways = [_count_sums(rest_costs, least, most, high) for least, most in spare]
            chosen = _invert(ways, trial.suggest_float(f"layer{place + 1}/size", 0.0, 1.0))
            layers.append(self._options(graph)[chosen])
            spent += costs[place][chosen]
        return Architecture(self.base, tuple(layers))

    def sample(self, rng: random.Random) -> Architecture:
        """A random architecture: sizes uniform in the box, graphs near the base graph (see `draw`)."""
        return self.suggest(_RandomTrial(self, rng))

    def draw(self, name: str, choices: Sequence[str], rng: random.Random) -> str:
        """One random choice for the parameter `name` of `suggest`.

        Operations keep the base graph's one, which is listed first, with probability 1 - edit_rate;
        everything else is uniform.
        """
        if not name.endswith("/op"):
            return rng.choice(choices)
        return rng.choice(choices[1:]) if rng.random() < self.edit_rate else choices[0]

    def size_count(self) -> int:
        """The number of combinations of (stack, expansion) in the box, with the base graph in every layer."""
        return count_within([self._costs(self.graph)] * self.base.depth, *self._ffn_box)

    @property
    def _activation(self) -> str:
        """The operation of the base graph, if it has the form that a base graph must have."""
        activation = self.graph.nodes[-2].op
        return activation if str(self.graph) == f"project({activation}(expand(x)))" else ""

    @property
    def _ffn_box(self) -> tuple[int, int]:
        fixed = fixed_params(self.base, self.labels)
        return self.min_params - fixed, self.max_params - fixed

    def _options(self, graph: FFNGraph) -> tuple[Genes, ...]:
        """All genes with this graph, cheapest first."""
        return _price(self.base, graph, self.stacks, self.expansions)[0]

    def _costs(self, graph: FFNGraph) -> tuple[int, ...]:
        return _price(self.base, graph, self.stacks, self.expansions)[1]

    def _nothing_fits(self) -> str:
        costs = self._costs(self.graph)
        fixed = fixed_params(self.base, self.labels)
        smallest, largest = (fixed + self.base.depth * cost for cost in (costs[0], costs[-1]))
        message = (
            f"no architecture has {self.min_params:,} to {self.max_params:,} parameters: "
            f"this space reaches from {smallest:,} to {largest:,}"
        )
        if self.max_params < smallest:
            return f"{message}; raise max_params, or allow smaller expansions or stacks"
        if self.min_params > largest:
            return f"{message}; lower min_params, or allow larger expansions or stacks"
        return f"{message}, but no size in between fits; widen the box"


@lru_cache(maxsize=1024)
def _price(
    base: Base, graph: FFNGraph, stacks: tuple[int, ...], expansions: tuple[Fraction, ...]
) -> tuple[tuple[Genes, ...], tuple[int, ...]]:
    """All genes with this graph, cheapest first, and the parameters of each."""
    options = [Genes(graph, stack, expansion) for stack in stacks for expansion in expansions]
    options.sort(key=lambda genes: (ffn_params(base, genes), genes.stack))
    return tuple(options), tuple(ffn_params(base, genes) for genes in options)


def count_within(costs: Sequence[Sequence[int]], low: int, high: int) -> int:
    """In how many ways one cost of every layer can be chosen so that their sum lies in [low, high]."""
    if low > high:
        return 0
    first, *rest = sorted(tuple(layer) for layer in costs)
    return sum(_count_sums(tuple(rest), low - cost, high - cost, high) for cost in first)


def _count_sums(costs: tuple[tuple[int, ...], ...], low: int, high: int, cap: int) -> int:
    totals, cumulative = _sums(costs, cap)
    return cumulative[bisect_right(totals, high)] - cumulative[bisect_left(totals, low)]


@lru_cache(maxsize=128)
def _sums(costs: tuple[tuple[int, ...], ...], cap: int) -> tuple[list[int], list[int]]:
    """The distinct sums up to `cap` of one cost per layer, ascending, and before each (and at the end) the
    number of ways to stay below it. `cap` prunes what no box can use; `costs` is sorted, so that the order of
    layers is no key.
    """
    if not costs:
        return [0], [0, 1]
    totals, cumulative = _sums(costs[1:], cap)
    ways: Counter[int] = Counter()
    for cost, repeats in Counter(costs[0]).items():
        for place, total in enumerate(totals[: bisect_right(totals, cap - cost)]):
            ways[total + cost] += repeats * (cumulative[place + 1] - cumulative[place])
    ascending = sorted(ways)
    summed = [0]
    for total in ascending:
        summed.append(summed[-1] + ways[total])
    return ascending, summed


def _invert(ways: Sequence[int], position: float) -> int:
    """The option where `position` of all ways, from 0 to 1, lies. Options without a way are never chosen."""
    everything = sum(ways)
    # Exact even where the numbers of ways exceed what a float holds.
    place = min(max(int(Fraction(position) * everything), 0), everything - 1)
    for option, count in enumerate(ways):
        if place < count:
            return option
        place -= count
    raise AssertionError("a space always keeps at least one way")


def _suggest_graph(trial: Trial, name: str, activation: str) -> FFNGraph:
    pre = _suggest_segment(trial, f"{name}/pre", "none", "x", {})
    # Where `pre` is nothing or an activation of x, it is among x plain and activated already.
    earlier = {"x": "x"} if pre in ("x", *(f"{unary}(x)" for unary in UNARY)) else {"x": "x", "pre": pre}
    mid = _suggest_segment(trial, f"{name}/mid", activation, f"expand({pre})", earlier)
    return FFNGraph.parse(_suggest_segment(trial, f"{name}/post", "none", f"project({mid})", earlier))


def _suggest_segment(trial: Trial, name: str, first: str, own: str, earlier: dict[str, str]) -> str:
    """The formula of one segment whose own value is `own`; `first` is the operation of the base graph.

    A parameter's name says on what its choices depend, since the choices of one name are always the same.
    """
    operations = (first, *(op for op in (*UNARY, *BINARY) if op != first))
    op = trial.suggest_categorical(f"{name}/op", operations)
    if op == "none":
        return own
    if op in UNARY:
        return f"{op}({own})"
    left = trial.suggest_categorical(f"{name}/left", ACTIVATIONS)
    sources = ("own", *earlier)
    source = "own"
    if len(sources) > 1:
        source = trial.suggest_categorical(f"{name}/right/{'-'.join(sources)}", sources)
    if source == "own":
        different = tuple(activation for activation in ACTIVATIONS if activation != left)
        right = _activate(trial.suggest_categorical(f"{name}/right/own-not-{left}", different), own)
    elif earlier[source].partition("(")[0] in UNARY:
        right = earlier[source]
    else:
        right = _activate(trial.suggest_categorical(f"{name}/right/{source}", ACTIVATIONS), earlier[source])
    outer = trial.suggest_categorical(f"{name}/outer", ACTIVATIONS)
    return _activate(outer, f"{op}({_activate(left, own)},{right})")


def _activate(activation: str, value: str) -> str:
    return value if activation == PLAIN else f"{activation}({value})"


@dataclass(frozen=True)
class _RandomTrial:
    space: Space
    rng: random.Random

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return self.space.draw(name, choices, self.rng)

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return self.rng.uniform(low, high)
