"""Why a space is empty."""

from collections.abc import Sequence

from search_spaces.counting import Cost
from search_spaces.limits import Limit


def nothing_fits(
    min_params: int,
    max_params: int,
    rows: Sequence[Sequence[Cost]],
    fixed: Sequence[int],
    limits: Sequence[tuple[Limit, int]],
) -> str:
    """Which bound no architecture keeps, and what would help.

    Args:
        rows: the costs of the options of each layer: parameters, then those of the limits.
        fixed: the parameters of everything but the FFNs, on each base of the space.
        limits: each limit with the lowest cost of everything but the FFNs.
    """
    smallest, largest = (extreme(fixed) + sum(extreme(row)[0] for row in rows) for extreme in (min, max))
    message = (
        f"no architecture has {min_params:,} to {max_params:,} parameters: "
        f"this space reaches from {smallest:,} to {largest:,}"
    )
    if max_params < smallest:
        return f"{message}; raise max_params, or allow smaller expansions, smaller stacks or fewer experts"
    if min_params > largest:
        return f"{message}; lower min_params, or allow larger expansions, larger stacks or more experts"
    for number, (limit, least) in enumerate(limits, start=1):
        lowest = least + sum(min(cost[number] for cost in row) for row in rows)
        if lowest > limit.maximum:
            return (
                f"no architecture keeps to {limit.name} {limit.maximum:,}: the smallest in this space is "
                f"{lowest:,}; raise max_{limit.name}, or allow smaller expansions, smaller stacks or fewer experts"
            )
    return f"{message}, but no size in between fits; lower min_params or raise max_params"
