"""Which trial of a study is taken: by its number, within limits, by the share of the teacher's score, or the knee of
the front.
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from nas.config.schema import ConfigError
from nas.config.values import count, kept_share
from nas.finalists import V, different, front
from nas.latency.limit import parse_latency
from nas.study import ledger
from nas.study.attributes import (
    COSTS,
    FAILURE,
    FUNCTION,
    IN_BUDGET,
    ORIGIN,
    RUNG,
    TEACHER,
    attribute,
    goals_of,
    metric_of,
)
from nas.study.description import formulas
from nas.study.folder import Folder
from nas.study.names import studies_of
from search_spaces.variants import experts_in_words


def knee(trials: Sequence[V]) -> V:
    """The trial of a Pareto front that is farthest above the line between the front's ends, scores and costs both
    scaled to a range of 1: beyond it, further cost brings less score. The best score, if none is above the line.

    Args:
        trials: of a front, with a score and a cost each; not empty.
    """
    by_cost = sorted(trials, key=lambda trial: trial.values[1])
    cheapest, dearest = by_cost[0], by_cost[-1]
    scores = dearest.values[0] - cheapest.values[0]
    costs = dearest.values[1] - cheapest.values[1]
    if not scores or not costs:
        return max(trials, key=lambda trial: trial.values[0])

    def above(trial: V) -> tuple[float, float]:
        score, cost = trial.values
        return (score - cheapest.values[0]) / scores - (cost - cheapest.values[1]) / costs, score

    return max(trials, key=above)


def within(trials: Sequence[FrozenTrial], limits: Mapping[str, float]) -> list[FrozenTrial]:
    """The trials whose costs are within the limits.

    Args:
        limits: attribute of a cost -> its maximum.

    Raises:
        ConfigError: there is none, or the trials do not have one of the costs.
    """
    left = list(trials)
    for name, maximum in limits.items():
        with_cost = [trial for trial in left if name in trial.user_attrs]
        if not with_cost:
            raise ConfigError(
                f"--max-{name}: the trials of this study have no {name}; search with --max-{name}, or with "
                f"--goals score,{name}"
            )
        left = [trial for trial in with_cost if trial.user_attrs[name] <= maximum]
        if not left:
            others = " within the other limits" if len(limits) > 1 else ""
            least = COSTS[name](min(trial.user_attrs[name] for trial in with_cost))
            limit = COSTS[name](maximum)
            raise ConfigError(f"--max-{name}: no trial{others} has at most {limit}; the least is {least}")
    return left


def cheapest_keeping(trials: Sequence[FrozenTrial], study: optuna.Study, share: float, cost: str) -> FrozenTrial:
    """The trial with the lowest cost that keeps this share of the teacher's score on the rows on which the trials were
    scored, without an allowance for noise.

    Args:
        cost: the attribute of the cost.

    Raises:
        ConfigError: none does, or the study does not have the teacher's score, or that is not positive.
    """
    teacher = study.user_attrs.get(TEACHER)
    if teacher is None:
        raise ConfigError(
            "--keep: this study does not have the teacher's score: it was made by an earlier version, or scores "
            "several tasks; choose by --max-params or --trial"
        )
    if teacher["score"] <= 0:
        raise ConfigError(f"--keep: the teacher's score is {teacher['score']:.4f}, of which no share can be kept")
    metrics = {trial.number: metric_of(trial, teacher["task"]) for trial in trials}
    enough = [trial for trial in trials if metrics[trial.number] >= share * teacher["score"]]
    if not enough:
        best = max(metrics.values())
        raise ConfigError(
            f"--keep: no trial keeps {share:.1%} of the teacher's score {teacher['score']:.4f}; the best keeps "
            f"{best / teacher['score']:.1%}"
        )
    return min(enough, key=lambda trial: (trial.user_attrs[cost], -metrics[trial.number]))


def of_number(study: optuna.Study, number: int) -> FrozenTrial:
    """The trial of this number.

    Raises:
        ConfigError: there is none, or it has no score.
    """
    trials = study.get_trials(deepcopy=False)
    if not trials:
        raise ConfigError(f"--trial: {study.study_name} has no trials yet")
    if not 0 <= number < len(trials):
        raise ConfigError(f"--trial: {study.study_name} has trials 0 to {len(trials) - 1}, not {number}")
    trial = trials[number]
    if trial.state != TrialState.COMPLETE:
        reason = trial.state.name.lower()
        if trial.state == TrialState.FAIL:
            reason = f"it failed ({trial.user_attrs.get(FAILURE, 'no reason given')})"
        elif trial.state == TrialState.PRUNED:
            reason = f"it was pruned after {trial.user_attrs[RUNG]} steps"
        raise ConfigError(f"--trial: trial {number} has no score: {reason}")
    return trial


def choose(
    study: optuna.Study, best: Mapping[str, Any] | None, options: argparse.Namespace, cost: str
) -> tuple[FrozenTrial, str]:
    """The trial that the options ask for, and why it was chosen.

    Args:
        best: the content of `best.json`; None before the end of the stage.
        cost: the attribute of the cost that `--keep` minimises.

    Raises:
        ConfigError: no trial is what the options ask for.
    """
    if options.trial is not None:
        return of_number(study, options.trial), "chosen by its number"
    limits = limits_of(options)
    trials = [trial for trial in different(ledger.scored(study)) if limits or trial.user_attrs[IN_BUDGET]]
    if not trials:
        raise ConfigError(f"{study.study_name} has no trial with a score{'' if limits else ' within its budget'} yet")
    trials = within(trials, limits)
    if options.keep is not None:
        try:
            share = kept_share(options.keep)
        except ValueError as error:
            raise ConfigError(f"--keep: {error}") from None
        trial = cheapest_keeping(trials, study, share, cost)
        return trial, f"the lowest {cost} of those that keep {share:.1%} of the teacher's score"
    if limits:
        return max(trials, key=lambda trial: trial.values[0]), f"the best of {len(trials)} within the limits"
    if len(study.directions) > 1:
        on_front = front(trials)
        return knee(on_front), f"the knee of a front of {len(on_front)} trials"
    if best is not None:
        return study.get_trials(deepcopy=False)[best["winner"]["trial"]], "the winner"
    return max(trials, key=lambda trial: trial.values[0]), f"the best of {len(trials)} so far"


def limits_of(options: argparse.Namespace) -> dict[str, float]:
    """The limits that the options set, by attribute.

    Raises:
        ConfigError: a limit cannot be read.
    """
    limits: dict[str, float] = {}
    name = "params"
    try:
        for name in ("params", "macs"):
            if (text := getattr(options, f"max_{name}")) is not None:
                limits[name] = count(text)
        if options.max_latency is not None:
            name = "latency"
            found = parse_latency(options.max_latency)
            if found.relative:
                raise ValueError("give a time such as '12ms'; a part of the teacher's latency is for searches")
            limits[name] = float(found.value)
    except ValueError as error:
        raise ConfigError(f"--max-{name}: {error}") from None
    return limits


def facts_of(study: optuna.Study, trial: FrozenTrial, confirmation: optuna.Study | None) -> dict[str, Any]:
    """What is known of a trial: its origin, scores, costs, and the formulas of its layers."""
    attributes, teacher = trial.user_attrs, study.user_attrs.get(TEACHER)
    goal = goals_of(study)[0]
    scores = {goal: trial.values[0]}
    if teacher and goal != "score":
        scores["score"] = metric_of(trial, teacher["task"])
    return {
        "origin": attributes[ORIGIN],
        "scores": scores,
        "standard_error": attributes["standard_error"],
        "teacher": teacher and teacher["score"],
        "confirmed": [
            other.values[0]
            for other in (ledger.scored(confirmation) if confirmation else ())
            if attribute(other, FUNCTION) == attribute(trial, FUNCTION)
        ],
        "costs": {name: attributes[name] for name in COSTS if name in attributes},  # latency in microseconds
        "layers": formulas(ledger.architecture_of(trial)),
    } | ({"experts": whole} if (whole := experts_in_words(ledger.architecture_of(trial).base)) else {})


def text_of(facts: Mapping[str, Any]) -> list[str]:
    """What is known of a trial as text; see `facts_of`."""
    (goal, value), *others = facts["scores"].items()
    scores = [f"{goal} {value:.4f} ± {facts['standard_error']:.4f}", *(f"{name} {other:.4f}" for name, other in others)]
    if facts["teacher"] is not None:
        scores.append(f"teacher {facts['teacher']:.4f}")
    if fresh := facts["confirmed"]:
        seeds = f"{len(fresh)} fresh seed{'s' if len(fresh) > 1 else ''}"
        scores.append(f"score after training with {seeds} {mean(fresh):.4f}")
    costs = [COSTS[name](cost) for name, cost in facts["costs"].items()]
    layers = [f"  layer {number}: {layer}" for number, layer in enumerate(facts["layers"], start=1)]
    experts = [f"  {facts['experts']}"] if "experts" in facts else []
    return ["; ".join(scores), "; ".join(costs), *layers, *experts]


def opened(folder: Folder, storage: str | None, stage: str | None) -> tuple[str, optuna.Study, optuna.Study | None]:
    """The stage (by default the last one with a score), its study, and the study of confirmations.

    Raises:
        ConfigError: the folder is not one of a study, or the stage has not begun.
        StorageError: the storage cannot be opened.
    """
    studies = studies_of(folder, storage)
    begun = studies.stages
    if stage is not None and stage not in begun:
        raise ConfigError(f"--stage: {folder.path} has the stages {', '.join(begun)}, not {stage}")
    with_scores = [name for name in begun if ledger.scored(begun[name])]
    chosen = stage or next(reversed(with_scores), None)
    if chosen is None:
        raise ConfigError(f"{folder.path} has no trial with a score yet")
    return chosen, begun[chosen], studies.confirmation
