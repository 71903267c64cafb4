"""Why a space is empty, and why an architecture is not a member of it."""

from typing import TYPE_CHECKING

from search_spaces.architecture import Architecture
from search_spaces.cost import fixed_params
from search_spaces.variants import EXPERT_COUNTS, are_variants

if TYPE_CHECKING:
    from search_spaces.spaces import Space


def why_not(space: "Space", architecture: Architecture) -> str:
    """The reason why the architecture is not a member; empty if it is one."""
    if not are_variants(space.base, architecture.base):
        return "it is on another base"
    if architecture.base not in space.bases:
        return "it has " + " and ".join(f"{name} {getattr(architecture.base, name)}" for name in EXPERT_COUNTS)
    for layer, genes in enumerate(architecture.layers):
        graph = space.graph_of(layer, genes)
        if genes not in space.options(layer, graph):
            size = f"stack {genes.stack}, expansion {genes.expansion}, experts: {genes.experts}"
            return f"layers[{layer}] has {size}"
        if not (space.spells(graph) if space.varies_graphs else graph == space.start_graphs[layer]):
            return f"layers[{layer}] has the graph {graph}"
    return "" if space.keeps_budget(architecture) else "its costs are outside the budget"


def nothing_fits(space: "Space") -> str:
    """Which bound no member keeps, and what would help."""
    rows = [space.costs(layer, graph) for layer, graph in enumerate(space.start_graphs)]
    fixed = [fixed_params(base, space.labels, space.head) for base in space.bases]
    smallest, largest = (extreme(fixed) + sum(extreme(row)[0] for row in rows) for extreme in (min, max))
    message = (
        f"no architecture has {space.min_params:,} to {space.max_params:,} parameters: "
        f"this space reaches from {smallest:,} to {largest:,}"
    )
    if space.max_params < smallest:
        return f"{message}; raise max_params, or allow smaller expansions, smaller stacks or fewer experts"
    if space.min_params > largest:
        return f"{message}; lower min_params, or allow larger expansions, larger stacks or more experts"
    for number, limit in enumerate(space.limits, start=1):
        lowest = min(map(limit.fixed_on, space.bases)) + sum(min(cost[number] for cost in row) for row in rows)
        if lowest > limit.maximum:
            return (
                f"no architecture keeps to {limit.name} {limit.maximum:,}: the smallest in this space is "
                f"{lowest:,}; raise max_{limit.name}, or allow smaller expansions, smaller stacks or fewer experts"
            )
    return f"{message}, but no size in between fits; lower min_params or raise max_params"
