"""Draws what `python -m benchmarks alternatives` measured: losses of score against speeds, relative to the teacher.

A column of panels is a task: --task TITLE FILE.json ... names its files of raw numbers. The rows are PyTorch and int8
(ONNX Runtime). A panel has the alternatives of the files whose preset is for its runtime, or of all files if none is.
A dot is one alternative of one file: its difference to the teacher in PyTorch, the mean over training seeds, with the
mean of their standard errors over dev rows, and its speed with one sentence, relative to the teacher in the same form.
What loses more than --floor is hollow, at the lower edge.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarks.alternatives import FROM_SCRATCH, TEACHER
from benchmarks.common import BenchmarkError, Report, read_results
from distill.tasks.metrics import Score
from nas.latency.onnx import INT8
from nas.latency.settings import TORCH
from nas.planning.finalists import ALLOCATED, FEWER_LAYERS, GLOBAL, UNIFORM, WINNER
from nas.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {TORCH: "PyTorch", INT8: "int8"}
# The kinds of alternatives, by the beginnings of their names: label, and marker and color.
KINDS = {
    TEACHER: (TEACHER, ("*", figures.BLACK)),
    "layers": (FEWER_LAYERS, figures.BASELINE_MARKS[FEWER_LAYERS]),
    UNIFORM: (UNIFORM, figures.BASELINE_MARKS[UNIFORM]),
    FROM_SCRATCH: (f"{UNIFORM} {FROM_SCRATCH}", ("s", figures.GRAY)),
    GLOBAL: (GLOBAL, figures.BASELINE_MARKS[GLOBAL]),
    ALLOCATED[0]: (ALLOCATED[0], figures.BASELINE_MARKS[ALLOCATED[0]]),
    "winner": ("winner of a search", figures.BASELINE_MARKS[WINNER]),
}


@dataclass(frozen=True)
class Point:
    """An alternative in one form: how many times as fast as the teacher it is, and its difference to its score."""

    kind: str
    speed: float
    difference: Score


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--task", nargs="+", action="append", required=True, metavar="TITLE FILE", help="a column: its title and files"
    )
    parser.add_argument("--floor", type=float, default=-0.1, help="lower edge of the panels; default: %(default)s")
    parser.add_argument("--plot", type=Path, required=True, metavar="FILE", help="the picture (.png or .svg)")


def run(options: Namespace, report: Report) -> None:
    if options.floor >= 0:
        raise BenchmarkError(f"--floor {options.floor}: give a number below 0, as -0.1")
    columns = {}
    for title, *files in options.task:
        if not files:
            raise BenchmarkError(f"--task {title!r}: name one or more files of raw numbers after the title")
        results = [read_results(Path(file), "alternatives")["results"] for file in files]
        for file, of in zip(files, results, strict=True):
            if TEACHER not in of["measured"]:
                raise BenchmarkError(f"{file}: its run has not measured the teacher yet: start its command again")
        columns[title] = {form: list(points(results, form)) for form in TITLES}
    with figures.styled():
        figures.write(draw(columns, options.floor), options.plot)
    report.progress(f"picture: {options.plot}")


def points(results: Sequence[Mapping[str, Any]], form: str) -> Iterator[Point]:
    """The points of a panel: `results` of the benchmark `alternatives` on one task, in one form."""
    batch = f"{form}, 1"
    for one in [one for one in results if one["settings"]["config"]["deployment"]["runtime"] == form] or results:
        measured = one["measured"]
        speeds = {
            name: table[TEACHER][batch] / table[name][batch]
            for key, table in measured.items()
            if key.startswith("latencies of ")
            for name in table
        }
        seeds: dict[str, list[Mapping[str, Any]]] = {TEACHER: [measured[TEACHER]]} if form == INT8 else {}
        for key, value in measured.items():
            if key.startswith("trained "):
                seeds.setdefault(key.split(" ", 3)[3], []).append(value)
        for name, of in seeds.items():
            differences = [value[form]["difference"] for value in of]
            score = Score(*(mean(each[part] for each in differences) for part in ("value", "standard_error")))
            yield Point(next(kind for kind in KINDS if name.startswith(kind)), speeds[name], score)


def draw(columns: Mapping[str, Mapping[str, Sequence[Point]]], floor: float) -> "Figure":
    """Draw the points: a column for each task, by its title, and a row for each form."""
    drawn = figures.figure(1 + 2.4 * len(columns), 5.5)
    panels = drawn.subplots(len(TITLES), len(columns), sharex="row", sharey=True, squeeze=False)
    kinds = {point.kind for column in columns.values() for points in column.values() for point in points}
    for kind in (kind for kind in KINDS if kind in kinds):
        panels[0, 0].plot([], label=KINDS[kind][0], **style_of(kind))
    for title, column in zip(columns, panels.T, strict=True):
        column[0].set_title(title)
        column[-1].set_xlabel("times the teacher's speed in this form")
        for form, axes in zip(TITLES, column, strict=True):
            fill(axes, columns[title][form], floor)
    for form, axes in zip(TITLES, panels[:, 0], strict=True):
        axes.set_ylabel(f"{TITLES[form]}: difference to the teacher")
    figures.legend_below(drawn, panels.flat)
    return drawn


def style_of(kind: str) -> dict[str, Any]:
    _, (marker, color) = KINDS[kind]
    return {"marker": marker, "markersize": 5, "color": color, "linestyle": ""}


def fill(axes: "Axes", points: Sequence[Point], floor: float) -> None:
    """Draw the points of a panel; those below `floor` hollow, on it."""
    axes.axhline(0, color="black", linewidth=0.8)
    for point in points:
        value, error = point.difference.value, point.difference.standard_error
        if value < floor:
            axes.plot(point.speed, floor, fillstyle="none", clip_on=False, **style_of(point.kind))
        else:
            axes.errorbar(point.speed, value, error, capsize=2, elinewidth=0.8, **style_of(point.kind))
    axes.set_ylim(floor, -0.3 * floor)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
