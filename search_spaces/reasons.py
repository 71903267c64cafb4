"""Why there is no such space: a setting is invalid, no layer can have its sizes, or no architecture fits its budget."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from foundation.errors import did_you_mean, shortened
from search_spaces.architecture import Architecture, ArchitectureError
from search_spaces.base import Base
from search_spaces.counting import Bounds, Cost, count_within
from search_spaces.genes import SIZE_GENES
from search_spaces.graph import FFNGraph
from search_spaces.layer import FFN, Attention, Embedding
from search_spaces.limits import Limit
from search_spaces.trees import MAX_HEIGHT, MIN_HEIGHT

NO_FFN = "at least one must be above 0, a layer without an FFN, as a supernet has blocks"


def setting_reason(genes: Mapping[str, Sequence[Any]], max_height: int | None, mutation_rate: float) -> str:
    """Which of these settings of a space is invalid, and why; empty if none is."""
    for name, choices in genes.items():
        if name not in SIZE_GENES:
            return f"genes: unknown gene {name!r}{did_you_mean(name, SIZE_GENES)}"
        if not choices or len(set(choices)) < len(choices):
            return f"{SIZE_GENES[name].key}: must be one or more distinct values, not {shortened(tuple(choices))}"
    if max_height is not None and not MIN_HEIGHT <= max_height <= MAX_HEIGHT:
        return f"max_height: must be from {MIN_HEIGHT} to {MAX_HEIGHT}, not {max_height}"
    return "" if 0 <= mutation_rate <= 1 else f"mutation_rate: must be from 0 to 1, not {mutation_rate}"


def no_size_reason(base: Base, graph: FFNGraph, choices: Mapping[str, Sequence[Any]]) -> str:
    """Why parts cannot have these sizes, or no layer would have an FFN; empty if they can."""
    for rank in choices["rank"]:
        if reason := Embedding(rank).invalid_reason(base):
            return f"ranks: {reason.removeprefix('rank: ')}"
    stacks, expansions, experts = (choices[name] for name in ("stack", "expansion", "experts"))
    attentions = [Attention(*size) for size in product(choices["heads"], choices["attention_experts"])]
    if all(reasons := [attention.invalid_reason(base) for attention in attentions]):
        return f"heads and attention_experts: no combination is valid; with the first, {reasons[0]}"
    try:
        for stack, expansion in product(stacks, expansions):
            Architecture.uniform(base, stack=stack, expansion=expansion)
    except ArchitectureError as error:
        return f"stacks and expansions: {error}"
    if not any(stacks):
        return f"stacks: {NO_FFN}"
    if all(FFN(graph, 1, *size).invalid_reason(base) for size in product(expansions, experts)):
        smallest = min(expansions)
        reason = FFN(graph, 1, smallest, experts[0]).invalid_reason(base)
        return f"expansions and experts: no combination is valid; with {smallest}, {reason.removeprefix('experts: ')}"
    return ""


def no_fit_reason(bounds: Bounds, part_costs: Sequence[Sequence[Cost]], fixed: int, limits: Sequence[Limit]) -> str:
    """The message of `SpaceError` for an empty space: which bounds no architecture keeps, and what would help.

    Args:
        bounds: on the sums of the costs of all parts: parameters, then those of the limits.
        part_costs: the costs of the options of each part.
        fixed: the parameters of everything else.
    """
    ranges = [
        [sum(extreme(cost[number] for cost in row) for row in part_costs) for extreme in (min, max)]
        for number in range(1 + len(limits))
    ]
    smallest, largest = (fixed + params for params in ranges[0])
    min_params, max_params = fixed + bounds.low, fixed + bounds.high[0]
    message = (
        f"no architecture has {min_params:,} to {max_params:,} parameters: "
        f"this space reaches from {smallest:,} to {largest:,}"
    )
    if max_params < smallest:
        return f"{message}; raise max_params, or allow smaller expansions, smaller stacks, or fewer heads or experts"
    if min_params > largest:
        return f"{message}; lower min_params, or allow larger expansions, larger stacks or more experts"
    binding: list[Limit] = []
    for limit, (lowest, highest) in zip(limits, ranges[1:], strict=True):
        if limit.fixed + lowest > limit.maximum:
            return (
                f"max_{limit.name} = {limit.in_words(limit.maximum)}: no architecture in this space is within it; the "
                f"least is {limit.rounded_up(limit.fixed + lowest)}; raise it, or allow smaller expansions, smaller "
                "stacks, or fewer heads or experts"
            )
        if limit.fixed + highest > limit.maximum:
            binding.append(limit)
    if not count_within([[cost[:1] for cost in row] for row in part_costs], Bounds(bounds.low, bounds.high[:1])):
        return f"{message}, but no size in between fits; lower min_params or raise max_params"
    limits_in_words = ", ".join(f"{limit.name} at most {limit.in_words(limit.maximum)}" for limit in binding)
    remedies = ["lower min_params", *(f"raise max_{limit.name}" for limit in binding)]
    return (
        f"no architecture meets all bounds at once: {min_params:,} to {max_params:,} parameters, {limits_in_words}; "
        f"{', '.join(remedies[:-1])} or {remedies[-1]}"
    )
