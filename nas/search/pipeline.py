"""Runs the stages of a search one after the other: each searches, confirms its finalists, and passes on its winner."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from distill.cli import several_processes
from distill.training.loop import device_type
from distill.training.teacher import load_config
from foundation.files import read_json, write_text
from nas.config.schema import ConfigError, StudyConfig
from nas.evaluation.modes import MODES, scored_rows
from nas.evaluation.trained import TrainedEvaluator
from nas.latency.measure import measure_whole
from nas.planning import keep
from nas.planning.budget import base_model, latencies_of, limits_of
from nas.planning.finalists import ALLOCATED, GLOBAL, Confirmed, confirmations, finalists, lead_line, summary
from nas.planning.stages import BEFORE, Enqueued, Plan, check_start, plan, sampler_of, start_of
from nas.preparation.context import preparation_context
from nas.preparation.data import contents_of
from nas.preparation.prepare import entries, prepare_in
from nas.preparation.workspace import AnyWorkspace, Workspace
from nas.report.drawing import add_drawing
from nas.report.notes import add_missing_notes, add_note
from nas.search.estimate import expected_parts
from nas.search.progress import BUDGET, Progress
from nas.search.run import SearchRun
from nas.study import ledger
from nas.study.attributes import COSTS, TEACHER
from nas.study.folder import Folder
from nas.study.names import CONFIRMATION, REFERENCE, prefix_of
from nas.study.storage import reporting_failures
from nas.workers.cluster import check_cluster, ray_session
from nas.workers.runner import evaluate_trial, run
from search_spaces.architecture import Architecture
from search_spaces.cost import embedding_params, head_params, layer_params
from search_spaces.equivalence import function_key
from search_spaces.layer import FFN
from search_spaces.limits import Limit
from search_spaces.spaces import GRAPHS, SIZES, Space, SpaceError


def prepare_search(search: SearchRun, progress: Progress | None = None) -> None:
    """Make what the first stage needs and keep it in the cache; `torchrun` may call this in several processes.

    Raises:
        UserError: see `run_search`.
    """
    search.check()
    progress = progress or Progress(quiet=True)
    context = preparation_context(search.config, search.cluster.device, progress.update)
    # One process saves the teacher's outputs, when the search begins.
    running = Search(search, prepare_in(replace(context, outputs=not several_processes())), progress)
    running.prepared(running.first())


def run_search(search: SearchRun, progress: Progress | None = None) -> Architecture:
    """Prepare the study and run its stages; returns the last winner.

    Args:
        progress: shows how far the search is; by default nothing is shown.

    Raises:
        UserError: a mistake in the configuration or in the files that it names, or another process runs the study.
    """
    search.check()
    check_cluster(search.cluster)
    search.claim()
    progress = progress or Progress(quiet=True)
    context = preparation_context(search.config, search.cluster.device, progress.update)
    progress.parts = expected_parts(search.config, entries(context), search.stages, context.data)
    running = Search(search, prepare_in(context), progress)
    first = running.first()
    progress.finish()
    search.claim(first)
    folder = search.folder
    folder.create(search.config, contents_of(search.config), search.storage)
    with folder.lock(), reporting_failures(search.url):
        # Another process may have started the study while this one was preparing it.
        folder.check(search.config, search.stages, search.resume)
        progress.say(f"study {folder.path} ({folder.dashboard(search.url)})")
        return running.run_stages(first)


@dataclass
class Search:
    """A search whose study is prepared, while it runs.

    Attributes:
        search: what to search; with `keep` in its configuration the budget is found by the search.
        progress: shows how far it is.
        references: the trials of the reference models, with which notes compare candidates.
    """

    search: SearchRun
    workspace: Workspace
    progress: Progress
    references: Sequence[FrozenTrial] = ()

    @property
    def given(self) -> StudyConfig:
        return self.search.config

    @property
    def folder(self) -> Folder:
        return self.search.folder

    @property
    def device(self) -> str:
        """Where models are trained: "auto", "cpu" or "cuda"."""
        return self.search.cluster.device

    @cached_property
    def prefix(self) -> str:
        """What the names of the studies begin with."""
        return prefix_of(self.folder, self.search.url)

    @property
    def config(self) -> StudyConfig:
        """The configuration with its budget: with `keep`, the one that was found, or none until it is found."""
        if self.given.keep is None:
            return self.given
        file = self.folder.budget
        if not file.exists():
            return self.with_budget(None, 1.0)
        budget = read_json(file)
        return self.with_budget(budget["maximum"], budget["slack"])

    def with_budget(self, maximum: int | None, slack: float) -> StudyConfig:
        """The configuration with a budget in place of `keep`, see `nas.planning.keep.with_budget`."""
        base, graph = self.workspace.base()
        head = self.workspace.folders.task.type.head
        return keep.with_budget(self.given, base, graph, self.workspace.num_labels, head, maximum, slack)

    def first(self) -> Plan:
        """The plan of the first stage, which refines the chosen start or the winner of the stage before it.

        Raises:
            ConfigError, search_spaces.spaces.SpaceError: there is nothing to refine, or no architecture is within the
                budget.
        """
        stage = self.search.stages[0]
        start = start_of(self.folder, stage, self.search.start)
        check_start(start, self.config, self.workspace.base()[0])
        limits = limits_of(self.config, self.workspace, self.device, self.progress.update)
        self.progress.update("baselines", None)
        return plan(self.config, self.workspace, stage, start, limits)

    def run_stages(self, first: Plan) -> Architecture:
        """Run the first stage and the others, each of which refines the winner before it; returns the last winner."""
        self.progress.update("starting Ray", None)
        with ray_session(self.search.cluster):
            if self.given.keep is not None and not self.folder.budget.exists():
                self.find_budget(first)
                first = self.first()
            winner = self.stage(first)
            for stage in self.search.stages[1:]:
                self.progress.say(f"stage {stage}, from the winner of stage {BEFORE[stage]}")
                winner = self.stage(plan(self.config, self.workspace, stage, winner, first.space.limits))
        return winner

    def stage(self, plan: Plan) -> Architecture:
        """Run one stage: search, confirm the finalists with fresh seeds, and write and return the winner."""
        self.search.begin(plan)
        workspace = self.prepared(plan)
        self.progress.update(f"stage {plan.stage}: sampler and teacher's score", None)
        sampler = sampler_of(plan, self.workspace)
        if plan.references:
            references = self._begun(REFERENCE, plan, workspace, plan.references)
            self._run("reference models", references, plan.space, workspace, rungs=plan.table.rungs)
            self.references = ledger.finished(references)
        study = self._begun(plan.study, plan, workspace, plan.enqueued, sampler)
        self._run(
            f"stage {plan.stage}",
            study,
            plan.space,
            workspace,
            trials=plan.trials,
            origin=plan.table.sampler,
            stop=plan.table.stop,
            rungs=plan.table.rungs,
        )
        add_missing_notes(study, self.references)  # of duplicates
        ranked = finalists(study, plan.table.confirm)
        if not ranked:
            raise ConfigError(
                "no candidate within the budget has a score; the attribute 'failure' of each trial says why"
            )
        fresh = range(self.config.seed + 1, self.config.seed + 1 + plan.table.confirm_seeds)
        wanted = [(ledger.architecture_of(trial), f"{plan.study} trial {trial.number}") for trial in ranked]
        confirmed = self.confirm(f"confirmation of stage {plan.stage}", plan.space, wanted, list(fresh))
        best = summary(ranked, confirmed, study, self.workspace.folders.task.score_metric)
        if self.given.keep is not None:
            self._add_kept(best, confirmed, self.given.keep.fraction)
        if line := lead_line(best["winner"]):
            self.progress.say(line)
        if any(limit.name == "latency" for limit in plan.space.limits):
            self._measure(best)
        write_text(self.folder.best(plan.stage), json.dumps(best, indent=2) + "\n")
        winner = Architecture.from_json(best["winner"]["architecture"])
        winner.save(self.folder.architecture, self.folder.searched(self.given, self.search.preset))
        return winner

    def _run(
        self,
        part: str,
        study: optuna.Study,
        space: Space,
        workspace: AnyWorkspace,
        trials: int | None = None,
        **options: Any,
    ) -> None:
        """Run the trials of a study, see `nas.workers.runner.run`, and show their progress under the name `part`."""
        total = len(ledger.waiting(study)) + len(ledger.finished(study)) if trials is None else trials
        self.progress.begin(part, study, total)
        run(
            study,
            space,
            workspace,
            self.search.cluster,
            trials=trials,
            on_start=self._on_start,
            on_trial=self._on_trial,
            **options,
        )

    def prepared(self, plan: Plan) -> AnyWorkspace:
        """What the candidates of this stage need, which is made unless it is in the cache."""
        return MODES[plan.table.evaluation].prepare(self.workspace, plan, self.device, self.progress.update)

    def confirm(
        self, part: str, space: Space, wanted: Sequence[tuple[Architecture, str]], seeds: Sequence[int]
    ) -> Confirmed:
        """Train architectures from the frozen supernet with each of the seeds; returns the results.

        All stages confirm in the same way and in one study, so their winners can be compared, and an architecture that
        an earlier stage has confirmed is not trained again.

        Args:
            part: its name in the progress.
            wanted: pairs of an architecture and its origin.
        """
        study = ledger.open_study(self.search.url, f"{self.prefix}{CONFIRMATION}")
        ledger.requeue_unfinished(study)
        enqueued = [(architecture, origin, seed) for seed in seeds for architecture, origin in wanted]
        # What is confirmed may differ in graphs and in sizes.
        if ledger.enqueue_missing(study, space, enqueued, vary=frozenset({GRAPHS, SIZES})):
            self.progress.say(f"training {len(wanted)} architectures with {len(seeds)} fresh seeds each")
        self._run(part, study, space, self.workspace, evaluate=partial(evaluate_trial, keep_rows=True))
        add_missing_notes(study)
        return confirmations(study, [function_key(architecture) for architecture, _ in wanted], seeds)

    def find_budget(self, widest: Plan) -> None:
        """Find the smallest budget within which the best baseline keeps the fraction of the teacher's score, by
        bisection over a ladder of budgets, and write it to the study's folder.

        Args:
            widest: a plan whose only bound is the base model.

        Raises:
            ConfigError: not even the base model keeps it.
        """
        goal = self.given.keep
        assert goal is not None
        metric = self.workspace.folders.task.score_metric
        # Refuse a teacher whose score is not positive.
        keep.fraction_kept(metric, self._teacher_rows, {}, goal.fraction)
        budgets = self._ladder(widest, goal.cost)
        seeds = range(self.given.seed + 1, self.given.seed + 1 + self.given.stage1.confirm_seeds)
        tried: list[dict[str, Any]] = []

        def passes(step: int) -> bool:
            baselines = self._first_stage(budgets[step], 1.0).baselines
            best = {origin: architecture for architecture, origin, _ in reversed(baselines)}
            architecture = best.get(ALLOCATED[0], best[GLOBAL])
            described = COSTS[goal.cost](budgets[step])
            # Neighboring budgets may be the same when rounded.
            origin = f"{described}, budget {step + 1} of {len(budgets)}"
            (confirmed,) = self.confirm(BUDGET, widest.space, [(architecture, origin)], seeds).values()
            kept = keep.fraction_kept(metric, self._teacher_rows, confirmed, goal.fraction)
            self.progress.say(f"{described}: keeps {kept or 'nothing, as no training succeeded'}")
            tried.append({"maximum": budgets[step]} | (kept.to_json() if kept else {}))
            return kept is not None and kept.fraction >= goal.fraction

        last = keep.last_passing(len(budgets), passes)
        if last is None:
            raise ConfigError(
                f"keep: not even the largest student keeps {goal.fraction:.1%} of the teacher's score; ask for less"
            )
        budget = {"cost": goal.cost, "maximum": budgets[last], "slack": self._slack(budgets[last]), "tried": tried}
        write_text(self.folder.budget, json.dumps(budget, indent=2) + "\n")
        self.progress.say(f"budget: {COSTS[goal.cost](budgets[last])}")

    def _first_stage(self, maximum: int, slack: float) -> Plan:
        """The plan of stage 1 within a budget in place of `keep`."""
        config = self.with_budget(maximum, slack)
        limits = limits_of(config, self.workspace, self.device, self.progress.update)
        return plan(config, self.workspace, "1", None, limits)

    def _slack(self, maximum: int) -> float:
        """The study's slack or, if nothing fits between its bounds, the first doubling of it with which something does:
        a budget that was not chosen by hand may lie between the sizes of a coarse space.
        """
        slack = self.given.space.slack
        while slack < 1:
            try:
                self._first_stage(maximum, slack)
                return slack
            except SpaceError:
                slack = min(1.0, 2 * slack if slack else 0.05)
        return 1.0

    def _ladder(self, widest: Plan, name: str) -> list[int]:
        """The budgets that `keep` tries, the largest first."""
        space = widest.space
        heads = partial(head_params, num_labels=space.num_labels, head=space.head)
        limit = Limit("params", 0, layer_params, keep.UNBOUNDED, heads, embedding_params)
        if name != "params":
            config = self.with_budget(keep.UNBOUNDED, 1.0)
            limits = limits_of(config, self.workspace, self.device, self.progress.update)
            limit = next(each for each in limits if each.name == name)
        whole = base_model(self.given, space.base, space.graph)
        smallest = limit.fixed + sum(
            min(limit.cost(space.base, part) for part in options)
            for options in space.options_of_parts([space.graph] * space.base.depth)[0]
        )
        # The cost of what no candidate lacks: with the smallest embedding, all but the FFNs or, if heads vary, layers.
        least = replace(whole, embedding=min(space.embedding_sizes, key=partial(limit.cost, space.base)))
        fixed = limit.total(least.with_ffns([FFN(stack=0)] * space.base.depth))
        if self.given.space.varies_heads:
            fixed = limit.fixed + limit.cost(space.base, least.head) + limit.cost(space.base, least.embedding)
        return keep.ladder(fixed, limit.total(whole), smallest)

    def _begun(
        self,
        name: str,
        plan: Plan,
        workspace: AnyWorkspace,
        enqueued: Sequence[Enqueued],
        sampler: BaseSampler | None = None,
    ) -> optuna.Study:
        """The study of this name with its first trials, and those that were interrupted, waiting. Unless the stage
        scores its candidates on several tasks, the study has the teacher's score on the same rows.
        """
        study = ledger.open_study(self.search.url, f"{self.prefix}{name}", sampler, plan.goals)
        if len(self.given.scored_tasks(plan.stage)) == 1 and TEACHER not in study.user_attrs:
            rows = self._teacher_rows[: scored_rows(self.given, plan.table, workspace)]
            score = self.workspace.folders.task.score_metric.of_contributions(rows).value
            study.set_user_attr(TEACHER, {"task": self.workspace.config.task, "score": score})
        ledger.requeue_unfinished(study)
        ledger.enqueue_missing(study, plan.space, enqueued)
        return study

    @cached_property
    def _teacher_rows(self) -> np.ndarray:
        """The contributions of the rows of the search split to the teacher's score."""
        evaluator = TrainedEvaluator(self.workspace, self.device)
        return evaluator.contributions(evaluator.teacher())

    def _add_kept(self, best: dict[str, Any], confirmed: Confirmed, fraction: float) -> None:
        """Add to every finalist what it keeps of the teacher's score, and report it for the winner."""
        metric = self.workspace.folders.task.score_metric
        for row in best["finalists"]:
            of_seeds = confirmed[function_key(Architecture.from_json(row["architecture"]))]
            kept = keep.fraction_kept(metric, self._teacher_rows, of_seeds, fraction)
            row["kept"] = kept and kept.to_json()
            if kept and row["trial"] == best["winner"]["trial"]:
                best["winner"]["kept"] = row["kept"]
                sure = f"at least {fraction:.1%} with confidence {kept.confidence:.0%}"
                self.progress.say(f"winner: keeps {kept} of the teacher's score, {sure}")

    def _measure(self, best: dict[str, Any]) -> None:
        """Add the latencies by the table to the finalists, and that of the whole model to the winner among them."""
        table = latencies_of(self.config, self.workspace, self.device, self.progress.update)
        for row in best["finalists"]:
            row["latency_us"] = table.total(Architecture.from_json(row["architecture"]))
        winner = next(row for row in best["finalists"] if row["trial"] == best["winner"]["trial"])
        one, device = {"winner": Architecture.from_json(winner["architecture"])}, device_type(self.device)
        whole = measure_whole(one, table, device, load_config(self.config.teacher))["winner"].whole.quiet
        winner["latency_measured_us"] = round(1e6 * whole)
        self.progress.say(
            f"latency of trial {winner['trial']}: {winner['latency_us'] / 1e3:.2f} ms in the table, "
            f"{1e3 * whole:.2f} ms measured whole"
        )

    def _on_start(self, study: optuna.Study, number: int) -> None:
        add_drawing(study, number, self.folder.artifacts)
        self.progress.started(study, number)

    def _on_trial(self, study: optuna.Study, number: int) -> None:
        if study.get_trials(deepcopy=False)[number].state.is_finished():  # otherwise it lost its worker
            add_note(study, number, self.references)
        self.progress.ended(study, number)
