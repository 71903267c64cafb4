"""A study as values: what the commands show of it is read from its ledger here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from distill.table import plural
from nas.config.load import load_config
from nas.config.schema import ConfigError, StudyConfig
from nas.planning.finalists import BASELINES, WINNER, WINNER_WITH_BASE_GRAPHS, front
from nas.study import attributes as names
from nas.study import ledger
from nas.study.attributes import COSTS, TEACHER, attribute, goals_of, metric_of
from nas.study.contributions import decode
from nas.study.folder import STAGES, Folder
from nas.study.names import CONFIRMATION, REFERENCE, studies_of
from search_spaces.architecture import Architecture

COMPLETE, PRUNED, FAILED, UNFINISHED = "complete", "pruned", "failed", "unfinished"
_STATES = {TrialState.COMPLETE: COMPLETE, TrialState.PRUNED: PRUNED, TrialState.FAIL: FAILED}
# The baselines that do not depend on an earlier stage.
FIXED_BASELINES = BASELINES - {WINNER, WINNER_WITH_BASE_GRAPHS}


@dataclass(frozen=True, eq=False, repr=False)
class Candidate:
    """A trial of the study `stage`."""

    trial: FrozenTrial
    stage: str

    def __repr__(self) -> str:
        result = f"{self.score:.4f}" if self.state == COMPLETE else self.state
        return f"<Candidate {self.stage}/{self.number}: {result}>"

    @property
    def number(self) -> int:
        return self.trial.number

    @property
    def origin(self) -> str:
        return str(self.trial.user_attrs.get(names.ORIGIN, ""))

    @property
    def state(self) -> str:
        """One of `COMPLETE`, `PRUNED`, `FAILED` and `UNFINISHED`."""
        return _STATES.get(self.trial.state, UNFINISHED)

    @property
    def reason(self) -> str:
        """Why a trial that has ended has no score; empty if it has one."""
        attributes = self.trial.user_attrs
        if self.state == FAILED:
            return str(attributes.get(names.FAILURE, "no reason given"))
        return f"among the lowest scores after {attributes.get(names.RUNG)} steps" if self.state == PRUNED else ""

    @property
    def score(self) -> float:
        """What its stage compares candidates by; NaN unless it is complete."""
        return float(self.trial.values[0]) if self.state == COMPLETE else float("nan")

    @property
    def result(self) -> tuple[float, float | None]:
        """The score and its standard error."""
        return self.score, self.trial.user_attrs.get("standard_error")

    @property
    def last(self) -> float | None:
        """The last intermediate score; None if there is none."""
        values = self.trial.intermediate_values
        return values[max(values)] if values else None

    @property
    def costs(self) -> dict[str, float]:
        """Those of `COSTS` and the active parameters, as far as they are known; latencies are in microseconds."""
        attributes = self.trial.user_attrs
        return {name: attributes[name] for name in (*COSTS, "params_active") if name in attributes}

    @property
    def in_budget(self) -> bool:
        return bool(self.trial.user_attrs.get(names.WITHIN_BUDGET))

    @property
    def architecture(self) -> Architecture:
        return ledger.architecture_of(self.trial)

    @property
    def function(self) -> str:
        """The key of the function that the architecture computes; empty before the trial was asked for."""
        return str(attribute(self.trial, names.FUNCTION, ""))

    @property
    def seed(self) -> int | None:
        return self.trial.user_attrs.get(names.SEED)

    @property
    def duplicate_of(self) -> int | None:
        return self.trial.user_attrs.get(names.DUPLICATE_OF)

    @property
    def span(self) -> tuple[float, float] | None:
        """Start and end in seconds since 1970; None unless the trial has ended."""
        start, end = self.trial.datetime_start, self.trial.datetime_complete
        if start is None or end is None:
            return None
        return start.timestamp(), max(start, end).timestamp()  # the clock may have been set back in between

    @property
    def loads(self) -> Sequence[Mapping[str, Any]]:
        """How the experts share the tokens: values with layer, part and shares."""
        return attribute(self.trial, names.EXPERT_LOAD, [])

    @property
    def rows(self) -> np.ndarray | None:
        """The contributions of the rows to the score of a confirmation; None if they were not recorded."""
        rows = attribute(self.trial, names.ROWS)
        return None if rows is None else decode(rows)


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage of a study.

    Attributes:
        goals: what candidates are compared by ("score" or "fidelity"), and possibly a cost.
        teacher: the task, and the teacher's score on the rows on which candidates are scored; None if not recorded.
        best: the content of best.json; None before the stage has ended.
    """

    name: str
    goals: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    teacher: Mapping[str, Any] | None
    best: Mapping[str, Any] | None

    @cached_property
    def scored(self) -> tuple[Candidate, ...]:
        """The complete trials without duplicates."""
        return tuple(c for c in self.candidates if c.state == COMPLETE and c.duplicate_of is None)

    @cached_property
    def within_budget(self) -> tuple[Candidate, ...]:
        """Those of `scored` that are within the budget, the best first."""
        return tuple(sorted((c for c in self.scored if c.in_budget), key=lambda c: (-c.score, c.number)))

    @cached_property
    def baselines(self) -> tuple[Candidate, ...]:
        """The scored trials that were enqueued as baselines."""
        return tuple(candidate for candidate in self.scored if candidate.origin in BASELINES)

    @property
    def leader(self) -> Candidate | None:
        """The winner or, before the stage has ended, the best candidate so far."""
        if self.best is not None:
            return self.candidates[self.best["winner"]["trial"]]
        return next(iter(self.within_budget), None)

    @property
    def finalists(self) -> dict[int, Mapping[str, Any]]:
        """The entries of the finalists in best.json, by their numbers."""
        return {} if self.best is None else {row["trial"]: row for row in self.best.get("finalists", ())}

    @property
    def costs(self) -> tuple[str, ...]:
        """The costs that differ between its trials, the second goal first; active parameters only with experts."""
        differing = [cost for cost in COSTS if len({c.costs.get(cost) for c in self.scored} - {None}) > 1]
        if any(c.costs.get("params") != c.costs.get("params_active") for c in self.scored):
            differing.insert(1, "params_active")
        return tuple(sorted(differing, key=lambda cost: cost not in self.goals[1:]))

    def front(self, cost: str) -> list[Candidate]:
        """The Pareto front of score and cost among the candidates within the budget, the cheapest first."""
        priced = [candidate for candidate in self.within_budget if cost in candidate.costs]
        best = front(priced, lambda candidate: (candidate.score, candidate.costs[cost]))
        return sorted(best, key=lambda candidate: (candidate.costs[cost], candidate.number))

    def knee(self, cost: str) -> Candidate | None:
        """The knee of that front; None if it has fewer than three points."""
        candidates = self.front(cost)
        return knee(candidates, cost) if len(candidates) > 2 else None

    def metric(self, candidate: Candidate) -> float | None:
        """A candidate's score in the metric of the task; None if it is not known."""
        if self.goals[0] == "score":
            return candidate.score
        return None if self.teacher is None else metric_of(candidate.trial, self.teacher["task"])


@dataclass(frozen=True, eq=False)
class Study:
    """A study.

    Attributes:
        stages: those that have begun.
        references: the models beyond the budget with which candidates are compared: the base model.
        confirmations: the trials with which finalists were trained again with fresh seeds.
    """

    name: str
    folder: Folder
    config: StudyConfig
    stages: tuple[Stage, ...]
    references: tuple[Candidate, ...]
    confirmations: tuple[Candidate, ...]

    @property
    def last(self) -> Stage:
        """The last stage that has ended or, if none has, the last one with a score, or else the last one."""
        ended = [stage for stage in self.stages if stage.best is not None]
        with_scores = [stage for stage in self.stages if stage.scored]
        return (ended or with_scores or self.stages)[-1]

    @cached_property
    def confirmed(self) -> dict[str, dict[int, Candidate]]:
        """The successful confirmations of every function, by seed."""
        result: dict[str, dict[int, Candidate]] = {}
        for candidate in self.confirmations:
            if candidate.state == COMPLETE and candidate.duplicate_of is None:
                result.setdefault(candidate.function, {})[candidate.seed or 0] = candidate
        return result

    def confirmed_scores(self, candidate: Candidate) -> list[float]:
        """The scores of the candidate's function with fresh seeds."""
        return [one.score for one in self.confirmed.get(candidate.function, {}).values()]

    @cached_property
    def best_baseline(self) -> Candidate | None:
        """The baseline within the budget with the best confirmed score or, if none was confirmed, the best score in the
        search; one that does not depend on an earlier stage, if there is one.
        """
        every = [c for stage in self.stages for c in stage.baselines if c.in_budget]
        every = [c for c in every if c.origin in FIXED_BASELINES] or every
        confirmed = {c.function: c for c in every if self.confirmed_scores(c)}
        if confirmed:
            return max(confirmed.values(), key=lambda c: mean(self.confirmed_scores(c)))
        return max(every, key=lambda c: c.score, default=None)


def knee(front: Sequence[Candidate], cost: str) -> Candidate:
    """The candidate of a Pareto front that is farthest above the line between the front's ends, scores and costs both
    scaled to a range of 1: beyond it, further cost brings less score. The best score, if none is above the line.

    Args:
        front: the cheapest first; not empty.
    """
    lowest, highest, least, most = front[0].score, front[-1].score, front[0].costs[cost], front[-1].costs[cost]

    def above(candidate: Candidate) -> tuple[float, float]:
        if lowest == highest or least == most:
            return 0.0, candidate.score
        gain = (candidate.score - lowest) / (highest - lowest)
        return gain - (candidate.costs[cost] - least) / (most - least), candidate.score

    return max(front, key=above)


def read(folder: Folder, storage: str | None = None) -> Study:
    """Read a study, which may be finished, interrupted or still running.

    Raises:
        ConfigError: the folder is not one of a study, no stage has begun, or one of its files cannot be read, or is not
            of this storage.
        StorageError: the storage cannot be opened.
    """
    studies = studies_of(folder, storage)
    config = load_config(str(folder.config))

    def candidates(study: str, name: str) -> tuple[Candidate, ...]:
        trials = studies[study].get_trials(deepcopy=False) if study in studies else []
        return tuple(Candidate(trial, name) for trial in trials)

    stages = tuple(
        Stage(
            stage,
            tuple(goals_of(studies[name])),
            candidates(name, stage),
            studies[name].user_attrs.get(TEACHER),
            folder.outcome(stage),
        )
        for stage in STAGES
        if (name := f"stage-{stage}") in studies
    )
    for stage in stages:
        named = [*stage.finalists, *([stage.best["winner"]["trial"]] if stage.best is not None else [])]
        if missing := [number for number in named if number not in range(len(stage.candidates))]:
            raise ConfigError(
                f"{folder.best(stage.name)} names trial {missing[0]}, and stage-{stage.name} has "
                f"{plural(len(stage.candidates), 'trial')}: the file is of another storage, or of a later state of it"
            )
    references = candidates(REFERENCE, "reference")
    confirmations = candidates(CONFIRMATION, "confirmation")
    return Study(folder.path.resolve().name, folder, config, stages, references, confirmations)
