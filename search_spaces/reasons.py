"""Why a space is empty: no layer can have its sizes, or no architecture fits its budget."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from search_spaces.architecture import Architecture, ArchitectureError, Experts, Genes
from search_spaces.base import Base
from search_spaces.counting import Bounds, Cost, count_within
from search_spaces.graph import FFNGraph
from search_spaces.limits import Limit


def sizes_problem(
    base: Base, graph: FFNGraph, stacks: Sequence[int], expansions: Sequence[Fraction], experts: Sequence[Experts]
) -> str:
    """Why no layer can have one of these sizes, or none has an FFN; empty if there is no problem."""
    try:
        for stack, expansion in product(stacks, expansions):
            Architecture.uniform(base, stack=stack, expansion=expansion)
    except ArchitectureError as error:
        return f"stacks and expansions: {error}"
    if not any(stacks):
        return "stacks: a supernet has blocks, so at least one stack must be above 0 (0: no FFN)"
    if all(Genes(graph, 1, *size).problem(base) for size in product(expansions, experts)):
        smallest = min(expansions)
        problem = Genes(graph, 1, smallest, experts[0]).problem(base)
        return f"expansions and experts: no combination is possible; at {smallest}, {problem.removeprefix('experts: ')}"
    return ""


def nothing_fits(
    min_params: int,
    max_params: int,
    layer_costs: Sequence[Sequence[Cost]],
    fixed: Sequence[int],
    limits: Sequence[tuple[Limit, Sequence[int]]],
) -> str:
    """The message of `SpaceError` for an empty space: which bounds no architecture keeps, and what would help.

    Args:
        layer_costs: the costs of the options of each layer: parameters, then those of the limits.
        fixed: the parameters of everything but the FFNs, on each base of the space.
        limits: each limit with the cost of everything but the FFNs on each base.
    """
    smallest, largest = (extreme(fixed) + sum(extreme(row)[0] for row in layer_costs) for extreme in (min, max))
    message = (
        f"no architecture has {min_params:,} to {max_params:,} parameters: "
        f"this space reaches from {smallest:,} to {largest:,}"
    )
    if max_params < smallest:
        return f"{message}; raise max_params, or allow smaller expansions, smaller stacks or fewer experts"
    if min_params > largest:
        return f"{message}; lower min_params, or allow larger expansions, larger stacks or more experts"
    binding: list[Limit] = []
    for number, (limit, fixed_costs) in enumerate(limits, start=1):
        lowest, highest = (
            extreme(fixed_costs) + sum(extreme(cost[number] for cost in row) for row in layer_costs)
            for extreme in (min, max)
        )
        if lowest > limit.maximum:
            return (
                f"no architecture keeps to {limit.name} {limit.in_words(limit.maximum)}: the smallest in this space is "
                f"{limit.in_words(lowest)}; raise max_{limit.name}, or allow smaller expansions, smaller stacks or "
                "fewer experts"
            )
        if highest > limit.maximum:
            binding.append(limit)
    params = [[cost[:1] for cost in row] for row in layer_costs]
    if not any(count_within(params, Bounds(min_params - base, (max_params - base,))) for base in fixed):
        return f"{message}, but no size in between fits; lower min_params or raise max_params"
    bounds = ", ".join(f"{limit.name} at most {limit.in_words(limit.maximum)}" for limit in binding)
    remedies = ["lower min_params", *(f"raise max_{limit.name}" for limit in binding)]
    return (
        f"no architecture keeps all bounds at once: {min_params:,} to {max_params:,} parameters, {bounds}; "
        f"{', '.join(remedies[:-1])} or {remedies[-1]}"
    )
