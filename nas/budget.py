"""The budget of a search, the space inside it, and the baselines that just fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from torch import Tensor
from transformers import AutoConfig

from distill.files import cache_folder
from distill.training.loop import make_accelerator
from distill.training.progress import ProgressCallback, ignore_progress
from nas.config.schema import ConfigError, StudyConfig
from nas.latency.table import LatencyTable, TooBusy, latency_table, parse_latency, resolve
from nas.preparation.workspace import Workspace
from search_spaces import cost
from search_spaces.architecture import Architecture, Base, Genes
from search_spaces.graph import FFNGraph
from search_spaces.spaces import GRAPHS, SIZES, Limit, Space
from supernet.importance import allocate

# Least inner neurons that global importance leaves a layer.
LEAST = 4
# Sentences of a batch that latencies are for; each has the study's `max_length` tokens.
LATENCY_BATCH = 1
# In place of a bound, where a cost is minimised and not bounded.
NO_LIMIT = 10**18


@dataclass(frozen=True)
class LatencyOf:
    """Microseconds of a layer's blocks."""

    table: LatencyTable

    def __call__(self, base: Base, genes: Genes) -> int:
        return self.table.ffn(base, genes)


def limits_of(
    config: StudyConfig, workspace: Workspace, device: str = "auto", on_progress: ProgressCallback = ignore_progress
) -> tuple[Limit, ...]:
    """What a study bounds or minimises beside parameters: MACs, and the latency on this device of a sentence of
    `max_length` tokens.

    Raises:
        ConfigError: the limit is not one, or the machine is too busy to measure on.
    """
    table = config.space
    base, graph = workspace.base()
    found = []
    if table.max_macs is not None or "macs" in config.goals:
        whole = cost.macs(Architecture.uniform(base, graph), labels=workspace.labels, head=workspace.folders.task.kind)
        fixed = whole - base.depth * cost.ffn_macs(base, Genes(graph))
        found.append(Limit("macs", fixed, cost.ffn_macs, table.max_macs or NO_LIMIT))
    if table.max_latency is not None or "latency" in config.goals:
        measured = latencies_of(config, workspace, device, on_progress)
        most = NO_LIMIT
        if table.max_latency is not None:
            try:
                most = resolve(parse_latency(table.max_latency), measured)
            except ValueError as error:
                raise ConfigError(f"space.max_latency: {error}") from None
        found.append(Limit("latency", measured.fixed, LatencyOf(measured), most))
    return tuple(found)


def device_type(device: str) -> str:
    """What `--device` means here: "cpu" or "cuda"."""
    return device if device != "auto" else make_accelerator(device).device.type


def latencies_of(config: StudyConfig, workspace: Workspace, device: str, on_progress: ProgressCallback) -> LatencyTable:
    """The latency table of this device for all inner widths of the space and of the baselines.

    Raises:
        ConfigError: the machine is too busy to measure on.
    """
    base, _ = workspace.base()
    try:
        return latency_table(
            base,
            AutoConfig.from_pretrained(workspace.teacher),
            sorted({int(expansion * base.inner) for expansion in config.space.expansions} | {base.inner}),
            batch=LATENCY_BATCH,
            tokens=config.max_length,
            device=device_type(device),
            cache=cache_folder(),
            on_progress=on_progress,
            experts=config.space.experts,
        )
    except TooBusy as error:
        raise ConfigError(f"latency: {error}; try again when the machine is quiet") from None


def budgeted_space(
    config: StudyConfig,
    base: Base,
    graph: FFNGraph,
    labels: int,
    *,
    limits: tuple[Limit, ...] = (),
    edit_rate: float | None = None,
    start: Architecture | None = None,
    vary: frozenset[str] = frozenset({GRAPHS, SIZES}),
    head: str = cost.CLASSIFICATION,
) -> Space:
    """The space of a stage, with the configuration's sizes and parameter box; of models with this head (`cost.HEADS`).

    The box reaches up to `max_params` or, without it, to what the uniform slice has, and no further than the largest
    uniform slice that keeps to the `limits`; and down by `slack` of what the FFNs there have above the smallest. Slices
    are dense, also where there are experts. Where sizes do not vary, or a cost is minimised, it has no lower end.

    Raises:
        search_spaces.spaces.SpaceError: nothing fits the box.
    """
    table = config.space
    most = table.max_params
    if most is None:
        assert table.uniform is not None
        most = cost.params(Architecture.uniform(base, graph=graph, expansion=table.uniform), labels, head)
    least = table.min_params
    if least is None and len(config.goals) > 1:
        least = 1
    if least is None:
        ends = [(end(table.stacks), end(table.expansions)) for end in (min, max)]
        smallest, largest = (Architecture.uniform(base, graph, stack, expansion) for stack, expansion in ends)
        reached = min(most, cost.params(largest, labels, head))
        if limits:
            uniform = largest_uniform(base, graph, labels, most, limits, head)
            reached = min(reached, cost.params(uniform, labels, head))
        lowest = cost.params(smallest, labels, head)
        least = reached - int(table.slack * max(0, reached - lowest))
    return Space(
        base=base,
        stacks=table.stacks,
        expansions=table.expansions,
        min_params=least if SIZES in vary else 1,
        max_params=most,
        edit_rate=table.edit_rate if edit_rate is None else edit_rate,
        labels=labels,
        graph=graph,
        gated=table.gated,
        limits=limits,
        start=start,
        vary=vary,
        experts=table.experts,
        head=head,
    )


def largest_uniform(
    base: Base,
    graph: FFNGraph,
    labels: int,
    most: int,
    limits: tuple[Limit, ...] = (),
    head: str = cost.CLASSIFICATION,
) -> Architecture:
    """The uniform slice, one block a layer, of the largest inner width with at most `most` parameters that keeps to
    the limits; of one channel if none does.
    """

    def at(inner: int) -> Architecture:
        return Architecture.uniform(base, graph=graph, expansion=Fraction(inner, base.inner))

    def fits(architecture: Architecture) -> bool:
        kept = all(limit.total(architecture) <= limit.most for limit in limits)
        return kept and cost.params(architecture, labels, head) <= most

    low, high = 1, base.inner
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(at(middle)) else (low, middle - 1)
    return at(low)


def kept_importance(importance: Sequence[Tensor]) -> Callable[[Architecture], float]:
    """What gives an architecture's share of the supernet's importance, that of the inner neurons of its lowest blocks.
    Of a mixture that of a dense layer as wide as one expert.

    Args:
        importance: for every layer that of its lowest block's inner neurons, in descending order.
    """
    sums = [own.double().cumsum(0).tolist() for own in importance]
    whole = sum(own[-1] for own in sums)

    @lru_cache(65_536)
    def kept(architecture: Architecture) -> float:
        pairs = zip(architecture.layers, sums, strict=True)
        return float(sum(own[genes.inner(architecture.base) - 1] for genes, own in pairs)) / whole

    return kept


def globally_important(space: Space, graph: FFNGraph, workspace: Workspace) -> Architecture:
    """As many inner neurons as the uniform slice has, given to the layers by importance over the whole network."""
    base = space.base
    uniform = largest_uniform(base, graph, space.labels, space.max_params, space.limits, space.head)
    total = base.depth * uniform.layers[0].inner(base)
    kept = allocate(workspace.importance(), total, min(LEAST, total // base.depth))
    return Architecture(base, tuple(Genes(graph, 1, Fraction(inner, base.inner)) for inner in kept))
