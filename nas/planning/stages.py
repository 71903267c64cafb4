"""The stages of a search: what each of them varies, starts from and may spend, and which winner it passes on
(EfficientBERT, section 3.2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from nas.config.schema import ConfigError, StudyConfig
from nas.config.stages import StageTable
from nas.planning.allocation import PredictedLosses, allocate, allocations, fewest_layers
from nas.planning.budget import (
    base_model,
    budgeted_space,
    check_feasible,
    globally_important,
    kept_importance,
    uniform_slice,
)
from nas.planning.finalists import ALLOCATED, BASE_MODEL, FEWER_LAYERS, GLOBAL, UNIFORM, WINNER, WINNER_WITH_BASE_GRAPHS
from nas.preparation.checks import check
from nas.preparation.workspace import Workspace, base_of_study
from nas.samplers import SAMPLERS, Proposer, WeightedAllocation
from nas.study.folder import Folder
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.cost import HeadCost
from search_spaces.genes import GENES
from search_spaces.graph import FFNGraph
from search_spaces.layer import DENSE
from search_spaces.limits import Limit
from search_spaces.spaces import GRAPHS, SIZES, Space

# Stages that refine an architecture, each with the stage whose winner it refines by default.
BEFORE = {"2": "1", "3": "2"}

# A trial to be enqueued: its architecture, its origin, and its seed if that is not the study's.
Enqueued = tuple[Architecture, str, int | None]


@dataclass(frozen=True)
class Plan:
    """One stage: its search space, its baselines, and what it may spend.

    Attributes:
        table: the stage's table in the configuration.
        baselines: what is evaluated before all others, the reference models first.
        start: the architecture that the stage refines; None for stages that refine nothing.
        costs: what is minimized in addition, see `nas.config.schema.StudyConfig.goals`.
    """

    stage: str
    table: StageTable
    space: Space
    baselines: Sequence[Enqueued]
    start: Architecture | None = None
    costs: Sequence[str] = ()

    @property
    def goals(self) -> tuple[str, ...]:
        """The names of the study's goals: what candidates are compared by, and costs."""
        return ("fidelity" if self.table.score == "fidelity" else "score", *self.costs)

    @property
    def references(self) -> list[Enqueued]:
        """The baselines beyond the budget, which are evaluated in a study of their own."""
        return [baseline for baseline in self.baselines if baseline[1] == BASE_MODEL]

    @property
    def enqueued(self) -> list[Enqueued]:
        """The baselines within the budget, with which the stage's study begins."""
        return [baseline for baseline in self.baselines if baseline[1] != BASE_MODEL]

    @property
    def trials(self) -> int:
        """The number of trials of the stage's study: reference models count among those of the configuration."""
        return self.table.trials - len(self.references)

    @property
    def study(self) -> str:
        return f"stage-{self.stage}"


def plan(
    config: StudyConfig, workspace: Workspace, stage: str, start: Architecture | None, limits: tuple[Limit, ...]
) -> Plan:
    """The plan of stage "1", "2" or "3".

    Raises:
        search_spaces.spaces.SpaceError: no architecture is within the budget.
    """
    base, graph = workspace.base()
    head = workspace.folders.task.type.head
    space = space_of(config, base, graph, workspace.num_labels, head, stage, start, limits)
    baselines = first_baselines(config, space, stage, start)
    if start is None:
        baselines.append((globally_important(space, graph, workspace), GLOBAL, None))
    if workspace.compensation is not None:
        losses = PredictedLosses.load(workspace.compensation.predictions, base, graph)
        if start is None and (fewest := fewest_layers(space, losses)) is not None:
            baselines.append((fewest, FEWER_LAYERS, None))
        allocated = allocations(space, losses, len(ALLOCATED))
        baselines += [(architecture, origin, None) for architecture, origin in zip(allocated, ALLOCATED, strict=False)]
    return Plan(stage, config.stage(stage), space, baselines, start, config.goals[1:])


def space_of(
    config: StudyConfig,
    base: Base,
    graph: FFNGraph,
    num_labels: int,
    head: HeadCost,
    stage: str,
    start: Architecture | None,
    limits: tuple[Limit, ...],
) -> Space:
    rate = config.stage(stage).mutation_rate
    return budgeted_space(
        config, base, graph, num_labels, limits=limits, mutation_rate=rate, start=start, vary=varied(stage), head=head
    )


def first_baselines(config: StudyConfig, space: Space, stage: str, start: Architecture | None) -> list[Enqueued]:
    """The baselines of a stage that depend on no weights."""
    if start is None:
        whole = base_model(config, space.base, space.graph)
        return [(whole, BASE_MODEL, None), (uniform_slice(config, space), UNIFORM, None)]
    baselines: list[Enqueued] = [(start, WINNER, None)]
    if stage == "2":
        with_base_graphs = start.with_ffns(replace(ffn, graph=space.graph) for ffn in start.ffns)
        baselines.append((with_base_graphs, WINNER_WITH_BASE_GRAPHS, None))
    return baselines


def varied(stage: str) -> frozenset[str]:
    """What a stage varies: graphs, sizes, or both."""
    return {"2": frozenset({GRAPHS}), "3": frozenset({SIZES})}.get(stage, frozenset({GRAPHS, SIZES}))


def start_of(folder: Folder, stage: str, chosen: Architecture | None) -> Architecture | None:
    """The start of a stage, which is the architecture that it refines: the recorded one if the stage has already begun,
    else the one chosen by `--from`, else the winner of the stage before. None for stages that refine nothing.

    Raises:
        ConfigError: there is none, or the chosen one differs from the recorded one.
    """
    if stage not in BEFORE:
        return None
    recorded = Architecture.load(folder.start(stage)) if folder.start(stage).exists() else None
    if recorded and chosen and chosen != recorded:
        raise ConfigError(
            f"--from: stage {stage} has already begun with another architecture, {folder.start(stage)}; "
            "leave out --from, or choose another --study"
        )
    if recorded or chosen:
        return recorded or chosen
    before = folder.outcome(BEFORE[stage])
    if before is None:
        raise ConfigError(
            f"stage {stage} refines the winner of stage {BEFORE[stage]}, which {folder.path} does not have: "
            f"run --stage {BEFORE[stage]} first, or give --from ARCH.json"
        )
    return Architecture.from_json(before["winner"]["architecture"])


def check_stage(config: StudyConfig, folder: Folder, stage: str, chosen: Architecture | None) -> None:
    """Refuse a stage that cannot be run, as far as this follows from the configurations of the study and its models, so
    that mistakes are found before anything is trained.

    Args:
        chosen: the architecture to refine instead of the winner of the stage before.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: the configuration cannot work, or there is nothing to
            refine, or candidates could not inherit from it.
        search_spaces.spaces.SpaceError: no architecture is within the budget of parameters and MACs.
    """
    start = start_of(folder, stage, chosen)
    if config.keep is not None and start is not None and not folder.budget.exists():
        raise ConfigError(f"keep: stage 1 finds the budget, which {folder.path} does not have: run --stage 1 first")
    check(config)
    base, graph = base_of_study(config)
    check_start(start, config, base)
    check_feasible(config, base, graph, start, varied(stage))


def check_start(start: Architecture | None, config: StudyConfig, base: Base) -> None:
    """Refuse an architecture that a stage on this base cannot refine.

    Raises:
        ConfigError: it is on another base, has more blocks than the supernet, or a gene of attention, head or embedding
            has a value that is not in the space. Where the number of heads varies, it may be any, as those of baselines
            are.
    """
    if start is None:
        return
    if start.base != base:
        raise ConfigError(
            "the architecture to refine is on another base than this study's: they differ in "
            f"{start.base.differences(base)}; give --from an architecture on this study's base"
        )
    for name, choices in ({"heads": (base.heads,), "rank": (None,)} | config.space.genes()).items():
        gene = GENES[name]
        is_free = gene.of_ffn or (name == "heads" and config.space.varies_heads)
        for value in map(gene.read, gene.parts(start)):
            if value not in choices and not is_free:
                raise ConfigError(f"the architecture to refine has {name} {value}: add {value} to space.{gene.key}")
    largest, stack = max(config.space.stacks), max(ffn.stack for ffn in start.ffns)
    if stack > largest:
        raise ConfigError(
            f"the architecture to refine has a stack of {stack} blocks, but the supernet only has {largest}: "
            f"add {stack} to space.stacks"
        )
    foreign = {ffn.experts for ffn in start.ffns} - {DENSE, *config.space.experts}
    if foreign and (config.space.max_latency is not None or "latency" in config.goals):
        raise ConfigError(
            f"the architecture to refine has experts ({'; '.join(sorted(map(str, foreign)))}) that are not in "
            "space.experts, so their latency is not measured: add them"
        )


def sampler_of(plan: Plan, workspace: Workspace, seed: int | None = None) -> Proposer:
    """The sampler of a stage, with the settings of its table. Its zero-cost proxy is the predicted loss or, where
    candidates are sliced, the fraction of the supernet's importance that a candidate keeps.

    Args:
        seed: by default the study's.
    """
    make: Callable[..., Proposer] = SAMPLERS[plan.table.sampler]
    settings: dict[str, Any] = plan.table.sampler_settings()
    if workspace.compensation is None:
        proxy = kept_importance(workspace.importance())
    else:
        losses = PredictedLosses.load(workspace.compensation.predictions, *workspace.base())
        proxy = lru_cache(8192)(lambda architecture: -losses.of(architecture))
        if make is WeightedAllocation:
            settings["losses"] = losses.of_parts
            settings["allocate"] = lambda weights: allocate(plan.space, losses.weighted(weights))
    seed = workspace.config.seed if seed is None else seed
    sampler = make(plan.space, seed, proxy, **settings)
    sampler.before = len(plan.references)
    return sampler
