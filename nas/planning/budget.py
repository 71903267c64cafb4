"""The budget of a search, the search space within it, and the baselines that use it up."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from torch import Tensor
from transformers import AutoConfig

from distill.tasks.types import TASK_TYPES
from distill.training.loop import device_type
from distill.training.progress import ProgressCallback, ignore_progress
from foundation.files import cache_folder
from nas.config.schema import ConfigError, StudyConfig, reporting
from nas.config.values import parse_latency
from nas.latency.measure import latency_table
from nas.latency.settings import TORCH, TableSettings
from nas.latency.table import LatencyTable
from nas.latency.whole import TooBusy
from nas.onnx.model import check_installed
from nas.preparation.workspace import Workspace
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.counting import add
from search_spaces.graph import GELU, FFNGraph
from search_spaces.layer import DENSE, FFN, Embedding, Layer, PredictionHead
from search_spaces.limits import Limit
from search_spaces.size import INT8, embedding_bytes, size_limit
from search_spaces.spaces import GRAPHS, SIZES, Space, SpaceError
from supernet.build import ExportError
from supernet.order.importance import allocate_by_importance

# The global importance allocation leaves every layer at least this many inner neurons.
MIN_INNER = 4
# Tasks are assumed to have no more labels than this until their rows are read.
MOST_LABELS = 10_000
# Stands for the bound of a cost that is minimized but not bounded.
NO_LIMIT = 10**18


@dataclass(frozen=True)
class HeadMacs:
    """The MACs of a head of this kind, for a sentence of 128 tokens."""

    num_labels: int
    head: cost.HeadCost

    def __call__(self, base: Base, part: PredictionHead) -> int:
        return cost.head_macs(base, part, num_labels=self.num_labels, head=self.head)


def embedding_macs(base: Base, part: Embedding) -> int:
    """The MACs of the map of an embedding of smaller rank, beyond those of the full one."""
    return cost.embedding_macs(base, part) - cost.embedding_macs(base)


@dataclass(frozen=True)
class PartLatency:
    """The latency in microseconds of a layer, or of an embedding beyond the full one, looked up in a latency table."""

    table: LatencyTable

    def __call__(self, base: Base, part: Layer | Embedding) -> int:
        return self.table.layer(base, part) if isinstance(part, Layer) else self.table.embedding(part)


def limits_of(
    config: StudyConfig, workspace: Workspace, device: str = "auto", on_progress: ProgressCallback = ignore_progress
) -> tuple[Limit, ...]:
    """The limits on costs other than parameters that the study bounds or minimizes: MACs, the size of the file,
    and the latency on this device.

    Raises:
        ConfigError: the machine is too busy to measure on, or the embeddings alone are larger than the file may be.
    """
    space = config.space
    base, _ = workspace.base()
    limits = closed_limits(config, base, workspace.num_labels, workspace.folders.task.type.head)
    if space.max_latency is not None or "latency" in config.goals:
        table = latencies_of(config, workspace, device, on_progress)
        wanted = space.max_latency
        maximum = NO_LIMIT if wanted is None else parse_latency(wanted).microseconds(table.teacher)
        of_part = PartLatency(table)
        limits = (*limits, Limit("latency", table.fixed, of_part, maximum, embedding_cost=of_part))
    return limits


def base_model(config: StudyConfig, base: Base, graph: FFNGraph = GELU) -> Architecture:
    """The base model: all layers have one whole FFN, attention and prediction head the space's fewest experts."""
    space = config.space
    return Architecture.uniform(
        base, graph, attention_experts=min(space.attention_experts), head_experts=min(space.head_experts)
    )


def macs_limits(config: StudyConfig, base: Base, num_labels: int, head: cost.HeadCost) -> tuple[Limit, ...]:
    """The limit on the MACs of models with this head; empty if the study neither bounds nor minimizes MACs."""
    if config.space.max_macs is None and "macs" not in config.goals:
        return ()
    maximum = config.space.max_macs or NO_LIMIT
    heads = HeadMacs(num_labels, head)
    return (Limit("macs", cost.embedding_macs(base), cost.layer_macs, maximum, heads, embedding_macs),)


def size_limits(config: StudyConfig, base: Base, num_labels: int, head: cost.HeadCost) -> tuple[Limit, ...]:
    """The limit on the file of models with this head, in `deployment.runtime`; empty if there is none.

    Raises:
        ConfigError: the embeddings alone are larger.
    """
    maximum = config.space.max_size
    if maximum is None:
        return ()
    runtime = config.deployment.runtime
    limit = size_limit(maximum, runtime, num_labels, head)
    ranks = [Embedding(rank) for rank in config.space.genes().get("rank", (None,))]
    taken, in_int8 = (min(embedding_bytes(base, part, form) for part in ranks) for form in (runtime, INT8))
    if taken >= maximum:
        smaller = "" if runtime == INT8 else f", or use --runtime {INT8} ({limit.rounded_up(in_int8)})"
        raise ConfigError(
            f"space.max_size: the embeddings alone take {limit.rounded_up(taken)} of {limit.in_words(maximum)} "
            f"({base.vocabulary:,} tokens, runtime {runtime}): raise it, take a teacher or base with a smaller "
            "vocabulary (python -m supernet.cut_vocabulary makes one of a teacher), search smaller ranks "
            f"(space.ranks){smaller}"
        )
    return (limit,)


def closed_limits(config: StudyConfig, base: Base, num_labels: int, head: cost.HeadCost) -> tuple[Limit, ...]:
    """The limits on costs with a closed form, which need no measurement."""
    return macs_limits(config, base, num_labels, head) + size_limits(config, base, num_labels, head)


def check_feasible(
    config: StudyConfig,
    base: Base,
    graph: FFNGraph,
    start: Architecture | None = None,
    vary: frozenset[str] = frozenset({GRAPHS, SIZES}),
) -> None:
    """Refuse a budget of parameters, MACs and bytes within which a stage has no architecture, before rows or weights
    are read.

    The task's head is not known before its rows are read. Therefore the upper bounds are checked with the smallest of
    all heads, and the lower bound with the largest: a budget that is refused here is too tight for any head.

    Raises:
        search_spaces.spaces.SpaceError: no architecture is within the budget.
        ConfigError: the embeddings alone are larger than the file may be.
    """
    heads = [task_type.head for task_type in TASK_TYPES.values()]
    fewest, most = (PredictionHead(extreme(config.space.head_experts)) for extreme in (min, max))
    fewest_params = min(heads, key=lambda head: cost.head_params(base, fewest, 1, head))
    fewest_macs = min(heads, key=lambda head: cost.head_macs(base, fewest, num_labels=1, head=head))
    limits = macs_limits(config, base, 1, fewest_macs) + size_limits(config, base, 1, fewest_params)

    def check_from(min_params: int) -> None:
        bounded = config.with_table("space", min_params=min_params)
        budgeted_space(bounded, base, graph, 1, limits=limits, start=start, vary=vary, head=fewest_params)

    least = config.space.min_params or 1
    smallest_head = cost.head_params(base, fewest, 1, fewest_params)
    largest_head = max(cost.head_params(base, most, MOST_LABELS, head) for head in heads)
    try:
        check_from(max(1, least - (largest_head - smallest_head)))
    except SpaceError:
        check_from(least)  # raises the error that names the configuration's bound
        raise


def check_deployment(config: StudyConfig, device: str) -> None:
    """Refuse latencies that cannot be measured, before anything is trained.

    Raises:
        ConfigError: there are threads for a GPU; or experts in ONNX, or its packages are not installed.
    """
    deployment, space = config.deployment, config.space
    if config.latency_key is None:
        return
    if deployment.runtime == TORCH:
        if deployment.threads is not None and device_type(device) != "cpu":
            raise ConfigError(f"deployment.threads: no model on a GPU needs {deployment.threads} threads: leave it out")
        return
    experts = {
        "space.experts": any(experts != DENSE for experts in space.experts),
        "space.attention_experts": max(space.attention_experts) > 1,
        "space.head_experts": max(space.head_experts) > 1,
    }
    for key in (key for key, occur in experts.items() if occur):
        raise ConfigError(
            f'{key}: the latency of experts is only measured in torch: set deployment.runtime = "torch", or leave '
            "experts out"
        )
    with reporting("deployment.runtime", ExportError):
        check_installed()


def latencies_of(
    config: StudyConfig, workspace: Workspace, device: str, on_progress: ProgressCallback = ignore_progress
) -> LatencyTable:
    """The latency table of this device for all inner widths, heads and ranks of the space and of the baselines.

    Raises:
        ConfigError: the machine is too busy to measure on.
    """
    try:
        return latency_table(_table_settings(config, workspace, device), cache_folder(), on_progress)
    except TooBusy as error:
        raise ConfigError(f"latency: {error}: stop them and try again") from None


def latencies_file(config: StudyConfig, workspace: Workspace, device: str) -> Path | None:
    """The file in which the table of `latencies_of` is kept once it has been measured; None if that is not known yet,
    because the teacher has not been fine-tuned.
    """
    if not workspace.folders.teacher.exists():
        return None
    return _table_settings(config, workspace, device).path(cache_folder())


def _table_settings(config: StudyConfig, workspace: Workspace, device: str) -> TableSettings:
    base, _ = workspace.base()
    deployment = config.deployment
    return TableSettings(
        base_model=base_model(config, base),
        teacher=AutoConfig.from_pretrained(workspace.folders.teacher),
        inner_widths=[*(int(expansion * base.inner) for expansion in config.space.expansions), base.inner],
        heads=[*(config.space.heads or ()), base.heads],
        batch=deployment.batch,
        tokens=deployment.tokens or config.max_length,
        # Models in ONNX run on the processor, wherever candidates are trained.
        device=device_type(device) if deployment.runtime == TORCH else "cpu",
        experts=config.space.experts,
        ranks=config.space.ranks or (),
        runtime=deployment.runtime,
        threads=deployment.threads,
    )


def budgeted_space(
    config: StudyConfig,
    base: Base,
    graph: FFNGraph,
    num_labels: int,
    *,
    limits: tuple[Limit, ...] = (),
    mutation_rate: float | None = None,
    start: Architecture | None = None,
    vary: frozenset[str] = frozenset({GRAPHS, SIZES}),
    head: cost.HeadCost = cost.CLASSIFIER,
) -> Space:
    """The search space of a stage: the sizes of the configuration within its budget, for models with this head.

    The upper bound on parameters is `max_params` or, if that is not set, the number of parameters of the uniform slice.
    The lower bound is `min_params`; if that is not set, it lies below the upper bound (or below the parameters of the
    largest uniform slice that keeps to the `limits`, if these are fewer) by the fraction `slack` of the distance to the
    smallest architecture. Uniform slices are dense, even if the space has experts, like the `base_model`.
    There is no lower bound if sizes do not vary, a cost is minimized, or the number of heads or the rank varies.

    Args:
        base: the study's.

    Raises:
        search_spaces.spaces.SpaceError: no architecture is within the budget.
    """
    table = config.space
    whole = base_model(config, base, graph)
    max_params = table.max_params
    if max_params is None:
        assert table.uniform is not None
        max_params = cost.params(whole.with_ffns([FFN(graph, 1, table.uniform)] * base.depth), num_labels, head)
    min_params = table.min_params
    if min_params is None and (len(config.goals) > 1 or table.varies_heads or table.ranks is not None):
        min_params = 1
    if min_params is None:
        sizes = [(choose(table.stacks), choose(table.expansions)) for choose in (min, max)]
        smallest, largest = (
            cost.params(whole.with_ffns([FFN(graph, *size)] * base.depth), num_labels, head) for size in sizes
        )
        upper = min(max_params, largest)
        if limits:
            within = largest_uniform(whole, num_labels, max_params, limits, head, min(1, *table.stacks))
            upper = min(upper, cost.params(within, num_labels, head))
        min_params = upper - int(table.slack * max(0, upper - smallest))
    return Space(
        base,
        table.genes(),
        min_params if SIZES in vary else 1,
        max_params,
        mutation_rate=table.mutation_rate if mutation_rate is None else mutation_rate,
        draws=table.draws,
        num_labels=num_labels,
        graph=graph,
        gated=table.gated or graph.gated,
        limits=limits,
        start=start,
        vary=vary,
        head=head,
        max_height=table.max_height,
    )


def largest_uniform(
    whole: Architecture,
    num_labels: int,
    max_params: int,
    limits: tuple[Limit, ...] = (),
    head: cost.HeadCost = cost.CLASSIFIER,
    least: int = 1,
    varies_heads: bool = False,
) -> Architecture:
    """The uniform slice (one block in each layer) with the largest inner width that keeps to the limits and has at most
    `max_params` parameters. If no width does, the slice with `least` inner channels; 0 means no FFN.

    Args:
        whole: the `base_model`.
        varies_heads: whether it also has that fraction of the heads, rounded up.
    """
    base, graph = whole.base, whole.ffns[0].graph

    def of_width(inner: int) -> Architecture:
        heads = -(-base.heads * inner // base.inner) if varies_heads else base.heads
        return whole.with_ffns([ffn_of_width(base, graph, inner)] * base.depth).with_heads([heads] * base.depth)

    def fits(architecture: Architecture) -> bool:
        within_limits = all(limit.total(architecture) <= limit.maximum for limit in limits)
        return within_limits and cost.params(architecture, num_labels, head) <= max_params

    wider = range(least + 1, base.inner + 1)
    return of_width(least + bisect_left(wider, True, key=lambda inner: not fits(of_width(inner))))


def uniform_slice(config: StudyConfig, space: Space) -> Architecture:
    """The `largest_uniform` slice in this space of the study."""
    whole, least = base_model(config, space.base, space.graph), min(1, *space.genes["stack"])
    heads = config.space.varies_heads
    return largest_uniform(whole, space.num_labels, space.max_params, space.limits, space.head, least, heads)


def ffn_of_width(base: Base, graph: FFNGraph, inner: int) -> FFN:
    """One block of `inner` channels, or no FFN if that is 0."""
    return FFN(graph, 1, Fraction(inner, base.inner)) if inner else FFN(stack=0)


def kept_importance(importance: Sequence[Tensor]) -> Callable[[Architecture], float]:
    """A zero-cost proxy: the fraction of the supernet's importance that an architecture keeps. It counts the inner
    neurons of each layer's lowest block; a layer of experts counts as a dense one of an expert's width.

    Args:
        importance: for every layer the importance of the inner neurons of its lowest block (inner,), in descending
            order.
    """
    sums_by_layer = [[0.0, *scores.double().cumsum(0).tolist()] for scores in importance]
    total = sum(sums[-1] for sums in sums_by_layer)

    @lru_cache(8192)
    def kept(architecture: Architecture) -> float:
        layers = zip(architecture.ffns, sums_by_layer, strict=True)
        return float(sum(sums[ffn.inner(architecture.base)] for ffn, sums in layers)) / total

    return kept


def globally_important(space: Space, graph: FFNGraph, workspace: Workspace) -> Architecture:
    """The global importance allocation: an architecture with as many inner neurons as the uniform slice, distributed
    over the layers by their importance in the whole network. If the number of heads varies, it has the most important
    neurons and heads of the whole network, the same fraction of both, and as many as the budget allows.
    """
    base = space.base
    if workspace.config.space.varies_heads:
        return _important_parts(space, graph, workspace)
    uniform = uniform_slice(workspace.config, space)
    total = base.depth * uniform.ffns[0].inner(base)
    widths = allocate_by_importance(workspace.importance(), total, min(MIN_INNER, total // base.depth))
    return uniform.with_ffns(ffn_of_width(base, graph, inner) for inner in widths)


def _important_parts(space: Space, graph: FFNGraph, workspace: Workspace) -> Architecture:
    """The `globally_important` heads and neurons. The fraction that is kept is found by bisection over its multiples of
    1 / the neurons of a layer.
    """
    base = space.base
    whole = base_model(workspace.config, base, graph)
    neurons, heads = workspace.importance(), workspace.head_importance()
    within = replace(space.bounds, low=0)

    def of_fraction(number: int) -> Architecture:
        widths = allocate_by_importance(neurons, base.depth * max(number, MIN_INNER), MIN_INNER)
        numbers = allocate_by_importance(heads, -(-base.depth * base.heads * number // base.inner), 0)
        return whole.with_ffns(ffn_of_width(base, graph, width) for width in widths).with_heads(numbers)

    def exceeds(number: int) -> bool:
        return add(*map(space.cost, of_fraction(number).parts)) not in within

    return of_fraction(bisect_left(range(1, base.inner + 1), True, key=exceeds))
