"""What a report shows, read from the ledger of a study as plain values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from statistics import mean
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.config.stages import StageTable
from nas.finalists import BASE_MODEL, BASELINES, WINNER, WINNER_WITH_BASE_GRAPHS, Confirmation, front
from nas.pick.choice import knee
from nas.study import ledger
from nas.study.attributes import (
    ARCHITECTURE,
    CHOICES,
    DUPLICATE_OF,
    EXPERT_LOAD,
    FAILURE,
    FUNCTION,
    IN_BUDGET,
    ORIGIN,
    ROWS,
    RUNG,
    SEED,
    TEACHER,
    attribute,
    goals_of,
)
from nas.study.contributions import decode
from nas.study.folder import Folder
from nas.study.names import studies_of
from search_spaces.architecture import Architecture

# The costs that a trial may have, in the order in which the report shows them. Latencies are in microseconds.
COSTS = ("params", "params_active", "macs", "latency")
COMPLETE, PRUNED, FAILED, UNFINISHED = "complete", "pruned", "failed", "unfinished"
_STATES = {TrialState.COMPLETE: COMPLETE, TrialState.PRUNED: PRUNED, TrialState.FAIL: FAILED}
# The baselines that do not depend on an earlier stage, and the base model, which exceeds the budget.
FIXED_BASELINES = (BASELINES | {BASE_MODEL}) - {WINNER, WINNER_WITH_BASE_GRAPHS}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A trial.

    Attributes:
        state: one of `COMPLETE`, `PRUNED`, `FAILED` and `UNFINISHED`.
        score: the stage's first goal; None unless the trial is complete.
        last: the last intermediate score; None if there is none.
        costs: some of `COSTS`.
        metrics: further scores by name, such as those of tasks.
        function: the key of the function that the architecture computes; empty before the trial was asked for.
        seconds: the duration of the evaluation; None if it was not recorded.
        span: start and end in seconds since 1970; None unless the trial has ended.
        reason: why there is no score; empty if there is one.
        loads: how the experts shared the tokens: dictionaries with layer, part and shares.
    """

    number: int
    origin: str
    proposed: bool
    state: str
    score: float | None
    standard_error: float | None
    last: float | None
    costs: Mapping[str, float]
    metrics: Mapping[str, float]
    in_budget: bool
    architecture: Architecture | None
    function: str
    seconds: float | None
    span: tuple[float, float] | None
    duplicate_of: int | None
    reason: str
    seed: int | None
    loads: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Point:
    """A candidate as a point of a front: its score and one of its costs."""

    values: tuple[float, float]
    candidate: Candidate


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage of a study.

    Attributes:
        goals: what candidates are compared by ("score" or "fidelity"), and possibly a cost.
        teacher: the task, and the teacher's score on the rows on which candidates are scored; None if not recorded.
        best: the content of best.json; None before the stage has ended.
        table: the stage's configuration.
    """

    name: str
    goals: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    teacher: Mapping[str, Any] | None
    best: Mapping[str, Any] | None
    table: StageTable

    @cached_property
    def scored(self) -> tuple[Candidate, ...]:
        """The complete trials without duplicates."""
        return tuple(c for c in self.candidates if c.state == COMPLETE and c.duplicate_of is None)

    @cached_property
    def within_budget(self) -> tuple[Candidate, ...]:
        """Those of `scored` that keep the budget."""
        return tuple(candidate for candidate in self.scored if candidate.in_budget)

    @cached_property
    def baselines(self) -> tuple[Candidate, ...]:
        """The scored trials that were enqueued as baselines, including the base model."""
        return tuple(candidate for candidate in self.scored if candidate.origin in BASELINES | {BASE_MODEL})

    @property
    def leader(self) -> Candidate | None:
        """The winner or, before the stage has ended, the best candidate so far."""
        if self.best is not None:
            return self.candidates[self.best["winner"]["trial"]]
        return max(self.within_budget, key=lambda candidate: candidate.score or 0.0, default=None)

    @property
    def costs(self) -> tuple[str, ...]:
        """The costs that its trials have and that differ between them, the second goal first."""
        found = [cost for cost in COSTS if len({c.costs.get(cost) for c in self.scored} - {None}) > 1]
        # Without experts, all parameters are active.
        if all(c.costs.get("params") == c.costs.get("params_active") for c in self.scored):
            found = [cost for cost in found if cost != "params_active"]
        return tuple(sorted(found, key=lambda cost: cost not in self.goals[1:]))

    def front(self, cost: str) -> list[Point]:
        """The Pareto front of score and cost among the candidates within the budget, the cheapest first."""
        points = [Point((c.score, c.costs[cost]), c) for c in self.within_budget if c.score is not None]
        return sorted(front(points), key=lambda point: (point.values[1], point.candidate.number))

    def knee(self, cost: str) -> Candidate | None:
        """The knee of that front; None if it is empty."""
        points = self.front(cost)
        return knee(points).candidate if points else None


@dataclass(frozen=True, eq=False)
class StudyData:
    """A study.

    Attributes:
        confirmations: the trials with which finalists were trained again with fresh seeds.
        rows: the contributions of the rows to a confirmation's score, by its number.
        final: the content of metrics.json of the final training; None without one.
    """

    name: str
    config: StudyConfig
    stages: tuple[Stage, ...]
    confirmations: tuple[Candidate, ...]
    rows: Mapping[int, Any]
    final: Mapping[str, Any] | None

    @property
    def last(self) -> Stage:
        """The last stage that has ended or, if none has, the last one with a score, or else the last one."""
        ended = [stage for stage in self.stages if stage.best is not None]
        with_scores = [stage for stage in self.stages if stage.scored]
        return next(reversed(ended or with_scores or list(self.stages)))

    @cached_property
    def confirmed(self) -> dict[str, dict[int, Confirmation]]:
        """The confirmations of every function, by seed."""
        found: dict[str, dict[int, Confirmation]] = {}
        for trial in self.confirmations:
            if trial.state == COMPLETE and trial.score is not None:
                result = Confirmation(trial.score, self.rows.get(trial.number))
                found.setdefault(trial.function, {})[trial.seed or 0] = result
        return found

    def confirmed_scores(self, function: str) -> list[float]:
        """The scores of a function with fresh seeds."""
        return [found.score for found in self.confirmed.get(function, {}).values()]

    def confirmed_mean(self, function: str) -> float | None:
        """Their mean; None if the function was not confirmed."""
        scores = self.confirmed_scores(function)
        return mean(scores) if scores else None


def read(folder: Folder, storage: str | None, checkpoint: Mapping[str, Any] | None) -> StudyData:
    """Read a study, which may be finished, interrupted or still running.

    Args:
        checkpoint: the content of metrics.json of its final training.

    Raises:
        ConfigError: the folder is not one of a study, or one of its files cannot be read.
        StorageError: the storage cannot be opened.
    """
    studies = studies_of(folder, storage)
    config = load_config(str(folder.config))
    confirmations = studies.confirmation.get_trials(deepcopy=False) if studies.confirmation else []
    return StudyData(
        folder.path.resolve().name,
        config,
        tuple(_stage(name, study, config, folder) for name, study in studies.stages.items()),
        tuple(map(_candidate, confirmations)),
        {trial.number: decode(rows) for trial in confirmations if (rows := attribute(trial, ROWS)) is not None},
        checkpoint,
    )


def _stage(name: str, study: optuna.Study, config: StudyConfig, folder: Folder) -> Stage:
    attributes, best = study.user_attrs, folder.outcome(name)
    return Stage(
        name,
        tuple(goals_of(study)),
        tuple(map(_candidate, study.get_trials(deepcopy=False))),
        attributes.get(TEACHER),
        best,
        config.stage(name),
    )


def _candidate(trial: FrozenTrial) -> Candidate:
    attributes = trial.user_attrs
    state = _STATES.get(trial.state, UNFINISHED)
    reason = attributes.get(FAILURE, "no reason given") if state == FAILED else ""
    if state == PRUNED:
        reason = f"among the lowest after {attributes.get(RUNG)} steps"
    return Candidate(
        number=trial.number,
        origin=attributes.get(ORIGIN, ""),
        proposed=bool(attribute(trial, CHOICES)),
        state=state,
        score=trial.values[0] if state == COMPLETE else None,
        standard_error=attributes.get("standard_error"),
        last=trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else None,
        costs={cost: float(attributes[cost]) for cost in COSTS if cost in attributes},
        metrics={key.removeprefix("score/"): value for key, value in attributes.items() if key.startswith("score/")},
        in_budget=bool(attributes.get(IN_BUDGET)),
        architecture=ledger.architecture_of(trial) if attribute(trial, ARCHITECTURE) else None,
        function=attribute(trial, FUNCTION, ""),
        seconds=attributes.get("seconds"),
        span=span_of(trial.datetime_start, trial.datetime_complete),
        duplicate_of=attributes.get(DUPLICATE_OF),
        reason=reason,
        seed=attributes.get(SEED),
        loads=attribute(trial, EXPERT_LOAD, []),
    )


def span_of(start: datetime | None, end: datetime | None) -> tuple[float, float] | None:
    """Start and end of a trial in seconds since 1970; None unless it has ended."""
    if start is None or end is None:
        return None
    return start.timestamp(), max(start, end).timestamp()  # the clock may have been set back in between


def busy(candidates: Iterable[Candidate]) -> list[tuple[float, float]]:
    """The periods in which at least one of the candidates was evaluated, in order: pairs of start and end."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(c.span for c in candidates if c.span is not None and c.duplicate_of is None):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def busy_until(periods: Sequence[tuple[float, float]], moments: Sequence[float]) -> list[float]:
    """For each moment, the seconds of these periods that lie before it; the periods are those of `busy`."""
    if not periods:
        return [0.0] * len(moments)
    edges = np.array(periods)
    passed = np.stack([edges[:, 1] - edges[:, 0], np.zeros(len(edges))]).T.ravel()[:-1].cumsum()
    return np.interp(moments, edges.ravel(), [0.0, *passed]).tolist()
