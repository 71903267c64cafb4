"""The stages of a search: what each of them varies, starts from and may spend, and which winner it passes on
(EfficientBERT, section 3.3).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from distill.files import write_text
from distill.training.progress import ProgressCallback, ignore_progress
from nas.allocation import PredictedLosses, allocations
from nas.budget import (
    budgeted_space,
    check_feasible,
    device_type,
    globally_important,
    kept_importance,
    largest_uniform,
    latencies_of,
    limits_of,
)
from nas.cluster import Cluster, ray_session
from nas.config.schema import ConfigError, StageTable, StudyConfig
from nas.finalists import (
    ALLOCATED,
    BASE_MODEL,
    GLOBAL,
    UNIFORM,
    WINNER,
    WINNER_WITH_BASE_GRAPHS,
    Confirmed,
    confirmations,
    finalists,
    lead_line,
    summary,
)
from nas.latency.table import measure_whole
from nas.preparation.checks import check
from nas.preparation.one_shot import prepare_one_shot
from nas.preparation.untrained import prepare_untrained
from nas.preparation.workspace import Workspace, base_of_study
from nas.runner import evaluate_keeping_rows, run
from nas.samplers import SAMPLERS, Proposer
from nas.study import ledger
from nas.study.description import Parameters, formula
from nas.study.folder import Folder
from search_spaces.architecture import DENSE, Architecture, Base
from search_spaces.graph import FFNGraph
from search_spaces.spaces import GRAPHS, SIZES, Space

# How many exact allocations a stage starts with.
ALLOCATIONS = 3
CONFIRMATION = "confirmation"
# Stages that refine an architecture, each with the stage whose winner it refines by default.
BEFORE = {"2": "1", "3": "2"}

# A trial to be enqueued: its architecture, its origin, and its seed if that is not the study's.
Enqueued = tuple[Architecture, str, int | None]


@dataclass(frozen=True)
class Plan:
    """One stage: its search space, its baselines, and what it may spend.

    Attributes:
        table: the stage's table in the configuration.
        baselines: the trials that are enqueued before all others.
        start: the architecture that the stage refines; None for stages that refine nothing.
    """

    stage: str
    table: StageTable
    space: Space
    baselines: Sequence[Enqueued]
    start: Architecture | None = None

    @property
    def study(self) -> str:
        """The name of the stage's Optuna study."""
        return f"stage-{self.stage}"


def plan(config: StudyConfig, workspace: Workspace, stage: str, start: Architecture | None, limits: Any) -> Plan:
    """The plan of stage "1", "2" or "3", or of the "single" stage, which searches everything at once with as many
    candidates as stages 1 and 2 together.

    Raises:
        search_spaces.spaces.SpaceError: no architecture keeps the budget.
    """
    base, graph = workspace.base()
    table: StageTable = getattr(config, f"stage{stage}", config.stage1)
    if stage == "single":
        together = config.stage1.trials + config.stage2.trials
        table = table.model_copy(update={"trials": config.single_trials or together})
    space = budgeted_space(
        config,
        base,
        graph,
        workspace.labels,
        limits=limits,
        edit_rate=table.edit_rate,
        start=start,
        vary=varied(stage),
        head=workspace.folders.task.type.head,
    )
    if start is None:
        uniform = largest_uniform(
            base, graph, workspace.labels, space.max_params, limits, space.head, min(1, *space.stacks)
        )
        baselines: list[Enqueued] = [
            (Architecture.uniform(base, graph=graph), BASE_MODEL, None),
            (uniform, UNIFORM, None),
            (globally_important(space, graph, workspace), GLOBAL, None),
        ]
    else:
        baselines = [(start, WINNER, None)]
        if stage == "2":
            baselines.append((all_base_graphs(start, graph), WINNER_WITH_BASE_GRAPHS, None))
    if workspace.predictions is not None:
        losses = PredictedLosses.load(workspace.predictions, base, graph)
        baselines += [(architecture, ALLOCATED, None) for architecture in allocations(space, losses, ALLOCATIONS)]
    return Plan(stage, table, space, baselines, start)


def varied(stage: str) -> frozenset[str]:
    """The genes that a stage varies: graphs, sizes, or both."""
    return {"2": frozenset({GRAPHS}), "3": frozenset({SIZES})}.get(stage, frozenset({GRAPHS, SIZES}))


def all_base_graphs(architecture: Architecture, graph: FFNGraph) -> Architecture:
    """The architecture with the base graph in every layer, and the same sizes and experts as before."""
    layers = tuple(replace(genes, graph=graph) for genes in architecture.layers)
    return Architecture(architecture.base, layers)


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
    before = folder.best(BEFORE[stage])
    if not before.exists():
        raise ConfigError(
            f"stage {stage} refines the winner of stage {BEFORE[stage]}, which {folder.path} does not have: "
            f"run --stage {BEFORE[stage]} first, or give --from ARCH.json"
        )
    return Architecture.from_json(json.loads(before.read_text(encoding="utf-8"))["winner"]["architecture"])


def check_stage(config: StudyConfig, folder: Folder, stage: str, chosen: Architecture | None) -> None:
    """Refuse a stage that cannot be run, as far as this follows from the configurations of the study and its models, so
    that mistakes are found before anything is trained.

    Args:
        chosen: the architecture to refine instead of the winner of the stage before.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: the configuration cannot work, or there is nothing to
            refine, or candidates could not inherit from it.
        search_spaces.spaces.SpaceError: no architecture keeps the budget of parameters and MACs.
    """
    start = start_of(folder, stage, chosen)
    check(config)
    base, graph = base_of_study(config)
    check_start(start, config, base)
    check_feasible(config, base, graph, start, varied(stage))


def check_start(start: Architecture | None, config: StudyConfig, base: Base) -> None:
    """Refuse an architecture that a stage on this base cannot refine.

    Raises:
        ConfigError: it is on another base, or has more blocks than the supernet.
    """
    if start is None:
        return
    if start.base != base:
        raise ConfigError(f"the architecture to refine has the base {start.base}; this study's is {base}")
    largest, stack = max(config.space.stacks), max(genes.stack for genes in start.layers)
    if stack > largest:
        raise ConfigError(
            f"the architecture to refine has a stack of {stack} blocks, but the supernet only has {largest}: "
            f"add {stack} to space.stacks"
        )
    foreign = {genes.experts for genes in start.layers} - {DENSE, *config.space.experts}
    if foreign and (config.space.max_latency is not None or "latency" in config.goals):
        raise ConfigError(
            f"the architecture to refine has experts ({'; '.join(sorted(map(str, foreign)))}) that are not in "
            "space.experts, so their latency is not measured: add them"
        )


@dataclass
class Search:
    """A search: its configuration, where it is stored and run, and the callbacks that show its progress."""

    config: StudyConfig
    folder: Folder
    workspace: Workspace
    cluster: Cluster
    storage: str
    prefix: str = ""
    say: Callable[[str], None] = print
    on_progress: ProgressCallback = ignore_progress
    on_trial: Callable[[optuna.Study, int, int], None] = field(default=lambda study, number, total: None)

    def first(self, stage: str, chosen: Architecture | None = None) -> Plan:
        """The plan of the stage to run first, which refines `chosen` or the winner of the stage before it.

        Raises:
            ConfigError, search_spaces.spaces.SpaceError: there is nothing to refine, or no architecture keeps the
                budget.
        """
        start = start_of(self.folder, stage, chosen)
        check_start(start, self.config, self.workspace.base()[0])
        limits = limits_of(self.config, self.workspace, self.cluster.device, self.on_progress)
        return plan(self.config, self.workspace, stage, start, limits)

    def run(self, first: Plan, rest: Sequence[str] = ()) -> Architecture:
        """Run a stage and the stages in `rest`, each of which refines the winner before it; returns the last winner."""
        with ray_session(self.cluster):
            winner = self.stage(first)
            for stage in rest:
                self.say(f"winner of stage {BEFORE[stage]}: {formula(winner)}")
                self.say(f"stage {stage}")
                winner = self.stage(plan(self.config, self.workspace, stage, winner, first.space.limits))
        return winner

    def stage(self, plan: Plan) -> Architecture:
        """Run one stage: search, confirm the finalists with fresh seeds, and write and return the winner."""
        workspace = self.workspace
        self.folder.begin(plan.stage, self.config, plan.start)
        if plan.table.evaluation == "one_shot":
            workspace = prepare_one_shot(workspace, plan.space, self.cluster.device, self.on_progress)
        elif plan.table.evaluation == "untrained":
            workspace = prepare_untrained(
                workspace, plan.stage == "3", plan.table.rows, self.cluster.device, self.on_progress
            )
        sampler = sampler_of(plan, workspace)
        study = ledger.open_study(self.storage, f"{self.prefix}{plan.study}", sampler, self.config.goals)
        ledger.requeue_unfinished(study)
        ledger.enqueue_missing(study, Parameters.of(plan.space), plan.baselines)
        run(
            study,
            plan.space,
            workspace,
            self.cluster,
            trials=plan.table.trials,
            origin=plan.table.sampler,
            stop=plan.table.stop,
            stop_untrained=plan.table.stop_untrained,
            rungs=plan.table.rungs,
            on_trial=partial(self._on_trial, total=plan.table.trials),
        )
        ranked = finalists(study, plan.table.confirm)
        if not ranked:
            raise ConfigError(
                "no candidate within the budget has a score; the attribute 'failure' of each trial says why"
            )
        fresh = range(self.config.seed + 1, self.config.seed + 1 + plan.table.confirm_seeds)
        confirmed = self._confirm(plan, ranked, list(fresh))
        best = summary(ranked, confirmed, study, self.workspace.folders.task.score_metric)
        if line := lead_line(best["winner"]):
            self.say(line)
        if any(limit.name == "latency" for limit in plan.space.limits):
            self._measure(best)
        write_text(self.folder.best(plan.stage), json.dumps(best, indent=2) + "\n")
        winner = Architecture.from_json(best["winner"]["architecture"])
        winner.save(self.folder.architecture)
        return winner

    def _confirm(self, plan: Plan, ranked: list[FrozenTrial], seeds: list[int]) -> Confirmed:
        """Train the finalists from the frozen supernet with each of the seeds; returns the results.

        All stages confirm in the same way and in one study, so their winners can be compared, and an architecture that
        an earlier stage has confirmed is not trained again.
        """
        study = ledger.open_study(self.storage, f"{self.prefix}{CONFIRMATION}")
        ledger.requeue_unfinished(study)
        wanted = [
            (ledger.architecture_of(trial), f"{plan.study} trial {trial.number}", seed)
            for seed in seeds
            for trial in ranked
        ]
        # The finalists of different stages may differ in graphs and in sizes.
        parameters = Parameters.of(plan.space, frozenset({GRAPHS, SIZES}))
        if ledger.enqueue_missing(study, parameters, wanted):
            self.say(f"confirming {len(ranked)} of {plan.study} with {len(seeds)} fresh seeds each")
        run(
            study,
            plan.space,
            self.workspace,
            self.cluster,
            trials=None,
            origin=CONFIRMATION,
            evaluate=evaluate_keeping_rows,
            on_trial=partial(self._on_trial, total=len(ledger.waiting(study)) + len(ledger.finished(study))),
        )
        return confirmations(study, ranked, seeds)

    def _measure(self, best: dict[str, Any]) -> None:
        """Add two latencies to every finalist: the one predicted from the table, and the one measured on the whole
        model.
        """
        table = latencies_of(self.config, self.workspace, self.cluster.device, self.on_progress)
        architectures = {
            f"{number}": Architecture.from_json(row["architecture"]) for number, row in enumerate(best["finalists"])
        }
        for number, measured in measure_whole(architectures, table, device_type(self.cluster.device)).items():
            row = best["finalists"][int(number)]
            whole = round(1e6 * measured.whole.median)
            row |= {"latency_us": measured.predicted, "latency_measured_us": whole}
            self.say(
                f"latency of trial {row['trial']}: {measured.predicted / 1e3:.2f} ms in the table, "
                f"{whole / 1e3:.2f} ms measured whole"
            )

    def _on_trial(self, study: optuna.Study, number: int, total: int) -> None:
        self.on_trial(study, number, total)


def sampler_of(plan: Plan, workspace: Workspace) -> Proposer:
    """The sampler of a stage. Its zero-cost proxy is the predicted loss or, where candidates are sliced, the share of
    the supernet's importance that a candidate keeps.
    """
    proxy = kept_importance(workspace.importance())
    if workspace.predictions is not None:
        losses = PredictedLosses.load(workspace.predictions, *workspace.base())
        proxy = lru_cache(65_536)(lambda architecture: -losses.of(architecture))
    return SAMPLERS[plan.table.sampler](plan.space, workspace.config.seed, proxy)
