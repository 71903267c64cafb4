"""The figure of losses over training steps (EfficientBERT, figure 4)."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from nas.report.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, figure, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The lines of successive models: colour, line style and marker.
LINES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"), (PURPLE, ":", "D"), (BLACK, "-", "x"))
# The highest loss, that of the first steps, may lie above the axis, which ends at so many times the median loss.
HIGHEST = 4.0


def over_steps(panels: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> "Figure":
    """Losses over training steps.

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
            colour, style, marker = styles[name]
            steps, losses = [step for step, _ in points], [loss for _, loss in points]
            axis.plot(steps, losses, style, color=colour, marker=marker, markevery=max(1, len(steps) // 8), ms=4,
                      lw=1.3, label=name)  # fmt: skip
        every = sorted(loss for points in lines.values() for _, loss in points)
        axis.set_ylim(0, min(1.05 * every[-1], HIGHEST * every[len(every) // 2]))
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.set_ylabel("loss")
    legend_below(drawn, list(axes))
    return drawn
