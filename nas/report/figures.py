"""The figures of a report: scores over the search and against costs, losses, and what FFNs compute.

They are readable in black and white and by color-blind people: nothing is told by color alone, and the colors are
those of Okabe and Ito (2008).
"""

import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foundation.errors import UserError
from nas.planning.finalists import (
    ALLOCATED,
    BASE_MODEL,
    FEWER_LAYERS,
    GLOBAL,
    UNIFORM,
    WINNER,
    WINNER_WITH_BASE_GRAPHS,
    shown,
)
from nas.report import surface
from nas.report.study import COMPLETE, FAILED, PRUNED, Candidate, Stage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, GRAY, ORANGE, SKY = "#000000", "#767676", "#E69F00", "#56B4E9"
GREEN, BLUE, VERMILLION, PURPLE = "#009E73", "#0072B2", "#D55E00", "#CC79A7"
# The marker and color of each baseline by its origin.
BASELINE_MARKS: dict[str, tuple[str, str]] = {
    BASE_MODEL: ("P", BLACK),
    UNIFORM: ("s", ORANGE),
    GLOBAL: ("D", SKY),
    FEWER_LAYERS: ("p", VERMILLION),
    ALLOCATED[0]: ("v", GREEN),
    ALLOCATED[1]: ("<", GREEN),
    ALLOCATED[2]: (">", GREEN),
    WINNER: ("X", PURPLE),
    WINNER_WITH_BASE_GRAPHS: ("h", PURPLE),
}
# The lines of successive models: color, line style and marker.
LINES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"), (PURPLE, ":", "D"), (BLACK, "-", "x"))
# How the axes of costs are named, and how many of the ledger's units one of the axis is.
COST_AXES = {
    "params": ("million parameters", 1e6),
    "params_active": ("million active parameters", 1e6),
    "macs": ("million MACs", 1e6),
    "latency": ("latency, ms", 1e3),
    "size": ("megabytes", 1e6),
}
# The highest loss, that of the first steps, may lie above the axis, which ends at this many times the median loss.
HIGHEST_LOSS = 4.0
# The surfaces in a row.
SURFACES = 4
SETTINGS = {
    "text.parse_math": False,  # names of tasks may have any characters
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "ffn-nas",
    "svg.fonttype": "path",
    "figure.facecolor": "white",
}


@contextmanager
def styled() -> Iterator[None]:
    """Figures that are drawn in this block look as this module says."""
    from matplotlib import rc_context  # takes half a second

    with rc_context(SETTINGS), warnings.catch_warnings():
        # Names may have characters that the font lacks; those are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches, whose parts are laid out without overlap."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def write(drawn: "Figure", path: Path) -> None:
    """Write a figure to the file that the option --plot names.

    Raises:
        UserError: the file has no ending, or one that matplotlib does not know, or cannot be written.
    """
    if not path.suffix:  # matplotlib would add one
        raise UserError(f"--plot {path}: give the file an ending, .png or .svg")
    try:
        drawn.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"--plot {path}: {error}") from None


def legend_below(drawn: "Figure", axes: Any) -> None:
    """One legend for several axes below the figure, each label once."""
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if entries:
        drawn.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3)


def score_axis(stage: Stage) -> str:
    """What the scores of a stage are."""
    if stage.goals[0] == "fidelity":
        return "fidelity to the teacher"
    return f"score on {stage.teacher['task']}" if stage.teacher else "score"


def score_limits(stage: Stage) -> tuple[float, float]:
    """The ends of the axis of scores: all baselines within the budget, and all candidates within it but the lowest
    tenth, which may be far below the others.
    """
    scores = sorted(c.score for c in stage.within_budget or stage.scored) or [0.0]
    low = min([scores[len(scores) // 10], *(c.score for c in stage.baselines if c.in_budget)])
    margin = max(0.06 * (scores[-1] - low), 1e-4)
    return low - margin, scores[-1] + 2.5 * margin


def best_so_far(stage: Stage) -> tuple[list[Candidate], list[float]]:
    """The candidates within the budget in the order in which they ended, and the best score up to each of them."""
    ended = sorted(stage.within_budget, key=lambda c: ((c.span or (0.0, 0.0))[1], c.number))
    return ended, list(accumulate((c.score for c in ended), max))


def progress(stage: Stage, references: Sequence[Candidate]) -> "Figure":
    """The scores and the best score so far, over the evaluations in the order in which they ended."""
    ends = {c.number: c.span[1] for c in stage.candidates if c.span and c.duplicate_of is None}
    order = {number: place for place, number in enumerate(sorted(ends, key=lambda number: ends[number]), start=1)}

    def place(candidate: Candidate) -> int:
        return order.get(candidate.number, 0)

    drawn = figure(9, 4.2)
    axis = drawn.subplots()
    axis.set_xlabel("evaluations")
    axis.set_ylabel(score_axis(stage))
    axis.set_xlim(0, len(order) + 1)
    axis.locator_params(axis="x", integer=True)
    axis.set_ylim(*score_limits(stage))
    _scatter(axis, stage, place)
    ended, best = best_so_far(stage)
    if ended:
        steps = [*map(place, ended), len(order)]
        axis.step(steps, [*best, best[-1]], where="post", color=BLUE, lw=2, label="best so far")
    pruned = [(place(c), c.last) for c in stage.candidates if c.state == PRUNED and c.last is not None]
    if pruned:
        places, heights = zip(*pruned, strict=True)
        axis.scatter(places, heights, s=12, marker="x", color=GRAY, lw=0.8, label="pruned, last score")
    failed = [place(c) for c in stage.candidates if c.state == FAILED and c.number in order]
    if failed:
        axis.scatter(failed, [0.015] * len(failed), marker="|", s=60, color=VERMILLION, lw=1.6,
                     transform=axis.get_xaxis_transform(), label="failed, without a score")  # fmt: skip
    marked = with_scores(stage, references)
    _mark_baselines(axis, stage, marked, lambda candidate: place(candidate) if candidate.stage == stage.name else 0)
    legend_below(drawn, [axis])
    return drawn


def _scatter(axis: Any, stage: Stage, place: Callable[[Candidate], float]) -> None:
    """Mark the candidates that are no baselines."""
    sampled = [c for c in stage.within_budget if c not in stage.baselines]
    axis.scatter([*map(place, sampled)], [c.score for c in sampled], s=14, facecolors="none", edgecolors=GRAY,
                 linewidths=0.8, label="candidates" if sampled else None)  # fmt: skip


def with_scores(stage: Stage, references: Sequence[Candidate]) -> list[Candidate]:
    """The reference models and the baselines of a stage that have a score."""
    return [candidate for candidate in (*references, *stage.baselines) if candidate.state == COMPLETE]


def _height(stage: Stage, candidate: Candidate) -> float:
    """Where the candidate is on the axis of scores: beyond the axis, at its end."""
    low, high = score_limits(stage)
    if low <= candidate.score <= high:
        return candidate.score
    margin = 0.03 * (high - low)
    return high - margin if candidate.score > high else low + margin


def _mark_baselines(axis: Any, stage: Stage, marked: Sequence[Candidate], place: Callable[[Candidate], float]) -> None:
    """Mark baselines and reference models."""
    for candidate in marked:
        marker, color = BASELINE_MARKS.get(candidate.origin, ("*", GRAY))
        label = shown(candidate.origin) + ("" if candidate.in_budget else ", outside the budget")
        height = _height(stage, candidate)
        if height != candidate.score:
            beyond = "above" if candidate.score > height else "below"
            label = f"{label}, {candidate.score:.4f} ({beyond} the axis)"
        axis.scatter([place(candidate)], [height], s=52, marker=marker, color=color, edgecolors=BLACK, linewidths=0.8,
                     zorder=4, clip_on=False, label=label)  # fmt: skip


def fronts(stage: Stage, references: Sequence[Candidate]) -> "Figure":
    """Scores against every cost, with the Pareto front, its knee, and the baselines."""
    drawn = figure(4.6 * max(2, len(stage.costs)) if len(stage.costs) != 1 else 7, 4.4)
    axes = drawn.subplots(1, len(stage.costs), sharey=True, squeeze=False)[0]
    axes[0].set_ylabel(score_axis(stage))
    axes[0].set_ylim(*score_limits(stage))
    for axis, cost in zip(axes, stage.costs, strict=True):
        _front(axis, stage, cost, references)
    legend_below(drawn, axes)
    return drawn


def _front(axis: Any, stage: Stage, cost: str, references: Sequence[Candidate]) -> None:
    name, unit = COST_AXES[cost]
    axis.set_xlabel(name + (" (the second goal)" if cost in stage.goals[1:] else ""))
    axis.locator_params(axis="x", nbins=5)
    prices = [c.costs[cost] / unit for c in stage.within_budget]
    spread = max(prices) - min(prices) or 0.02 * max(prices)
    left, right = min(prices) - 0.08 * spread, max(prices) + 0.12 * spread
    axis.set_xlim(left, right)
    _scatter(axis, stage, lambda candidate: candidate.costs[cost] / unit)
    steps = [(candidate.costs[cost] / unit, candidate.score) for candidate in stage.front(cost)]
    if steps:
        axis.step([*(x for x, _ in steps), right], [*(y for _, y in steps), steps[-1][1]], where="post", color=BLUE,
                  lw=1.6, label="Pareto front")  # fmt: skip
        axis.scatter(*zip(*steps, strict=True), s=22, color=BLUE, zorder=3)
    if (best := stage.knee(cost)) is not None:
        axis.scatter([best.costs[cost] / unit], [best.score], s=190, marker="o", facecolors="none",
                     edgecolors=VERMILLION, linewidths=2, zorder=5, label="knee")  # fmt: skip
    marked = [candidate for candidate in with_scores(stage, references) if cost in candidate.costs]
    _mark_baselines(axis, stage, marked, lambda c: min(max(c.costs[cost] / unit, left), right))
    for candidate in marked:
        price = candidate.costs[cost] / unit
        if not left <= price <= right:
            end, text, side, offset = (right, f"{price:.4g} →", "right", -8)
            if price < left:
                end, text, side, offset = (left, f"← {price:.4g}", "left", 8)
            axis.annotate(text, (end, _height(stage, candidate)), xytext=(offset, 0), textcoords="offset points",
                          ha=side, va="center", fontsize=8)  # fmt: skip


def scatter(points: Sequence[tuple[str, float, float]], x: str, y: str) -> "Figure":
    """Named points in one plane, whose axes have these names (EfficientBERT, figure 1)."""
    drawn = figure(6.4, 4.2)
    axis = drawn.subplots()
    axis.set(xlabel=x, ylabel=y)
    for (name, right, up), (color, _, marker) in zip(points, cycle(LINES), strict=False):
        axis.scatter([right], [up], s=42, color=color, marker=marker, zorder=3)
        axis.annotate(name, (right, up), xytext=(6, 5), textcoords="offset points", fontsize=8)
    axis.margins(0.14)
    return drawn


def over_steps(panels: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> "Figure":
    """Losses over training steps (EfficientBERT, figure 4).

    Args:
        panels: for each panel its lines by name, as points (step, loss). Of more than five names the sixth looks like
            the first, and so on.
    """
    drawn = figure(max(4.8, 4.2 * len(panels)), 3.4)
    axes = drawn.subplots(1, len(panels), squeeze=False)[0]
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    styles = dict(zip(names, cycle(LINES), strict=False))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for name, points in lines.items():
            color, style, marker = styles[name]
            axis.plot(*zip(*points, strict=True), style, color=color, marker=marker,
                      markevery=max(1, len(points) // 8), ms=4, lw=1.3, label=name)  # fmt: skip
        every = sorted(loss for points in lines.values() for _, loss in points)
        if every[0] > 0:
            axis.set_ylim(0, min(1.05 * every[-1], HIGHEST_LOSS * every[len(every) // 2]))
        axis.set(title=title, xlabel="step", ylabel="loss")
    legend_below(drawn, list(axes))
    return drawn


def surfaces(panels: Mapping[str, np.ndarray]) -> "Figure":
    """Surfaces over the two inputs, one for each title, all seen from the same side; each has its own vertical axis,
    because what is compared is the form (EfficientBERT, figure 5).
    """
    from mpl_toolkits.mplot3d import axes3d  # noqa: F401  (adds the projection)

    columns = min(SURFACES, len(panels))
    rows = -(-len(panels) // columns)
    drawn = figure(2.9 * columns, 2.95 * rows)
    for place, (title, values) in enumerate(panels.items(), start=1):
        axis = drawn.add_subplot(rows, columns, place, projection="3d")
        axis.plot_surface(*surface.grid(), values, cmap="cividis", rstride=2, cstride=2, lw=0.25, edgecolor=BLACK)
        # Lines of a formula end after a bracket or a comma rather than within a name.
        lines = textwrap.wrap(title.replace("(", "( ").replace(",", ", "), 30)
        axis.set_title("\n".join(line.replace("( ", "(") for line in lines), fontsize=8.5, loc="center", pad=0)
        axis.tick_params(labelsize=6.5, pad=-2)
        axis.set_xticks([-15, -5, 5])
        axis.set_yticks([-15, -5, 5])
        axis.locator_params(axis="z", nbins=4)
        axis.view_init(elev=24, azim=-125)
        axis.set_box_aspect(None, zoom=0.9)
    return drawn
