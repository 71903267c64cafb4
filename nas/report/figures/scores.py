"""Figures of scores: over evaluations and time, against costs, and against confirmed scores."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.finalists import BASE_MODEL, shown
from nas.report.data import FAILED, PRUNED, Candidate, Stage, StudyData, busy, busy_until
from nas.report.style import BASELINE_MARKS, BLACK, BLUE, GREY, STAGE_MARKS, VERMILLION, figure, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# How the axes of costs are named, and how many of the ledger's units one of the axis is.
COST_AXES = {
    "params": ("million parameters", 1e6),
    "params_active": ("million active parameters", 1e6),
    "macs": ("million MACs", 1e6),
    "latency": ("latency, ms", 1e3),
}
ABOVE = " (above the axis)"


def score_axis(stage: Stage) -> str:
    """What the scores of a stage are."""
    if stage.goals[0] == "fidelity":
        return "fidelity to the teacher"
    return f"score on {stage.teacher['task']}" if stage.teacher else "score"


def score_limits(stage: Stage) -> tuple[float, float]:
    """The ends of the axis of scores: all baselines within the budget, and all candidates within it but the lowest
    tenth, which may be far below the others.
    """
    scores = sorted(c.score for c in stage.within_budget if c.score is not None)
    if not scores:
        scores = [c.score for c in stage.scored if c.score is not None] or [0.0]
    baselines = [c.score for c in stage.baselines if c.in_budget and c.score is not None]
    low = min([scores[len(scores) // 10], *baselines])
    margin = max(0.06 * (scores[-1] - low), 1e-4)
    return low - margin, scores[-1] + 2.5 * margin


def best_so_far(stage: Stage) -> tuple[list[Candidate], list[float]]:
    """The candidates within the budget in the order in which they ended, and the best score up to each of them."""
    ended = sorted(stage.within_budget, key=lambda c: (c.span[1] if c.span else 0.0, c.number))
    return ended, list(accumulate((c.score for c in ended if c.score is not None), max))


def progress(stage: Stage) -> "Figure":
    """Scores and the best score so far, over the evaluations and over the time in which trials were running."""
    ended = sorted(
        (c for c in stage.candidates if c.span and c.duplicate_of is None), key=lambda c: (c.span or (0, 0))[1]
    )
    order = {c.number: place for place, c in enumerate(ended, start=1)}
    ends = {c.number: c.span[1] for c in stage.candidates if c.span}
    seconds = dict(zip(ends, busy_until(busy(stage.candidates), list(ends.values())), strict=True))

    drawn = figure(9, 4.2)
    axes = drawn.subplots(1, 2, sharey=True)
    places: list[tuple[str, Callable[[Candidate], float]]] = [
        ("evaluations", lambda candidate: order.get(candidate.number, 0)),
        ("minutes in which trials were running", lambda candidate: seconds.get(candidate.number, 0.0) / 60),
    ]
    for axis, (name, place) in zip(axes, places, strict=True):
        _scores_over(axis, stage, place)
        axis.set_xlabel(name)
        axis.set_xlim(left=0)
    axes[0].set_ylabel(score_axis(stage))
    axes[0].set_ylim(*score_limits(stage))
    legend_below(drawn, axes)
    return drawn


def _scores_over(axis: Any, stage: Stage, place: Callable[[Candidate], float]) -> None:
    sampled = [c for c in stage.within_budget if c not in stage.baselines]
    if sampled:
        scores = [c.score for c in sampled]
        axis.scatter(
            [*map(place, sampled)], scores, s=14, facecolors="none", edgecolors=GREY, linewidths=0.8, label="candidates"
        )
    ended, best = best_so_far(stage)
    if ended:
        end = max(place(c) for c in stage.candidates if c.span)
        axis.step([*map(place, ended), end], [*best, best[-1]], where="post", color=BLUE, lw=2, label="best so far")
    pruned = [c for c in stage.candidates if c.state == PRUNED and c.last is not None and c.duplicate_of is None]
    if pruned:
        heights = [c.last for c in pruned]
        axis.scatter([*map(place, pruned)], heights, s=12, marker="x", color=GREY, lw=0.8, label="pruned, last score")
    failed = [c for c in stage.candidates if c.state == FAILED and c.span and c.duplicate_of is None]
    if failed:
        ends = axis.get_xaxis_transform()  # heights as shares of the axis
        axis.scatter(
            [*map(place, failed)], [0.015] * len(failed), marker="|", s=60, color=VERMILLION, lw=1.6,
            transform=ends, label="failed, without a score",
        )  # fmt: skip
    _mark_baselines(axis, stage, place)


def _mark_baselines(axis: Any, stage: Stage, place: Callable[[Candidate], float]) -> None:
    """Mark the baselines; those above the axis at its upper end."""
    low, high = score_limits(stage)
    top = high - 0.03 * (high - low)  # the marker is inside the axis
    for candidate in stage.baselines:
        if candidate.score is None:
            continue
        marker, colour = BASELINE_MARKS[candidate.origin]
        label = shown(candidate.origin) + ("" if candidate.in_budget else ", exceeds the budget")
        height = candidate.score
        if height > high:
            height, label = top, label + f", {height:.4f}{ABOVE}"
        axis.scatter(
            [place(candidate)], [height], s=52, marker=marker, color=colour, edgecolors=BLACK, linewidths=0.8,
            zorder=4, clip_on=False, label=label,
        )  # fmt: skip


def fronts(stage: Stage) -> "Figure":
    """Scores against every cost, with the Pareto front, its knee, and the baselines."""
    costs = stage.costs
    drawn = figure(4.6 * max(2, len(costs)) if len(costs) != 1 else 7, 4.4)
    axes = drawn.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for axis, cost in zip(axes, costs, strict=True):
        _front(axis, stage, cost)
    axes[0].set_ylabel(score_axis(stage))
    axes[0].set_ylim(*score_limits(stage))
    legend_below(drawn, axes)
    return drawn


def _front(axis: Any, stage: Stage, cost: str) -> None:
    name, unit = COST_AXES[cost]
    goal = " (the second goal)" if cost in stage.goals[1:] else ""
    axis.set_xlabel(name + goal)
    axis.locator_params(axis="x", nbins=5)
    sampled = [c for c in stage.within_budget if c not in stage.baselines]
    scores = [c.score for c in sampled]
    prices = [c.costs[cost] / unit for c in sampled]
    axis.scatter(prices, scores, s=14, facecolors="none", edgecolors=GREY, linewidths=0.8, label="candidates")
    within = [c.costs[cost] / unit for c in (*stage.within_budget,)]
    if within:
        spread = max(within) - min(within) or 0.02 * max(within)
        axis.set_xlim(min(within) - 0.08 * spread, max(within) + 0.12 * spread)
    points = stage.front(cost)
    steps = [(point.values[1] / unit, point.values[0]) for point in points]
    if steps:
        right = axis.get_xlim()[1]
        axis.step([*(x for x, _ in steps), right], [*(y for _, y in steps), steps[-1][1]], where="post", color=BLUE,
                  lw=1.6, label="Pareto front")  # fmt: skip
        axis.scatter(*zip(*steps, strict=True), s=22, color=BLUE, zorder=3)
    best = stage.knee(cost)
    if best is not None and best.score is not None and len(points) > 2:
        axis.scatter([best.costs[cost] / unit], [best.score], s=190, marker="o", facecolors="none",
                     edgecolors=VERMILLION, linewidths=2, zorder=5, label="knee")  # fmt: skip
    left, right = axis.get_xlim()

    def inside(candidate: Candidate) -> float:
        return min(max(candidate.costs[cost] / unit, left), right)

    _mark_baselines(axis, stage, inside)
    for candidate in stage.baselines:
        if not left <= candidate.costs[cost] / unit <= right and candidate.score is not None:
            axis.annotate(
                f"{candidate.costs[cost] / unit:.4g} →", (right, min(candidate.score, score_limits(stage)[1])),
                xytext=(-8, -3), textcoords="offset points", ha="right", va="top", fontsize=8,
            )  # fmt: skip


def confirmed_pairs(study: StudyData, stage: Stage, metric: str | None = None) -> list[tuple[float, float, float]]:
    """For every function of a stage that was confirmed: its score in the search, the mean of its confirmed scores, and
    their range over seeds, halved.

    Args:
        metric: the name of the score of the search; by default what the stage compared its candidates by.
    """
    pairs = []
    for candidate in stage.scored:
        scores = study.confirmed_scores(candidate.function)
        score = candidate.score if metric is None else candidate.metrics.get(metric)
        if scores and score is not None:
            pairs.append((score, float(np.mean(scores)), (max(scores) - min(scores)) / 2))
    return pairs


def agreements(study: StudyData, kinds: Sequence[tuple[str, str | None]]) -> "Figure":
    """Scores in the search against confirmed scores (EfficientBERT, figure 3).

    Args:
        kinds: the kinds of scores in the search: how each is named, and the metric that it is, as `confirmed_pairs`
            takes it.
    """
    drawn = figure(4.6 * max(1, len(kinds)) + (2 if len(kinds) == 1 else 0), 4.2)
    axes = drawn.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axis, (name, metric) in zip(axes, kinds, strict=True):
        for stage in study.stages:
            pairs = confirmed_pairs(study, stage, metric)
            if pairs:
                marker, colour = STAGE_MARKS[stage.name]
                x, y, spread = zip(*pairs, strict=True)
                axis.errorbar(x, y, yerr=spread, fmt=marker, color=colour, mec=BLACK, mew=0.6, ms=7, lw=1, capsize=2,
                              label=f"stage {stage.name} (bars: the range over seeds)")  # fmt: skip
        axis.set_xlabel(name)
    axes[0].set_ylabel("score after training with fresh seeds")
    legend_below(drawn, axes)
    return drawn


def of_base_model(stage: Stage) -> Candidate | None:
    """The trial of the base model; None if the stage has none."""
    return next((c for c in stage.scored if c.origin == BASE_MODEL), None)
