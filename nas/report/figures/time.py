"""The figure of where the time went."""

from typing import TYPE_CHECKING

from nas.report.style import BLACK, FILLS, HATCHES, figure, legend_below
from nas.report.timing import Times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Parts that take less than this share of the longest bar are not labelled.
LEAST_LABELLED = 0.06


def spent(stages: dict[str, Times]) -> "Figure":
    """The wall time of every stage, in minutes, by what it was spent on."""
    parts = list(next(iter(stages.values())).parts())
    drawn = figure(9, 1.5 + 0.62 * len(stages))
    axis = drawn.subplots()
    names = list(stages)
    longest = max(sum(times.parts().values()) for times in stages.values()) / 60
    for number, part in enumerate(parts):
        before = [sum(list(times.parts().values())[:number]) / 60 for times in stages.values()]
        values = [times.parts()[part] / 60 for times in stages.values()]
        axis.barh(names, values, left=before, color=FILLS[number], hatch=HATCHES[number], edgecolor=BLACK, lw=0.7,
                  label=part, height=0.6)  # fmt: skip
        for row, (start, value) in enumerate(zip(before, values, strict=True)):
            if longest and value > LEAST_LABELLED * longest:
                axis.text(start + value / 2, row, f"{value:.1f}", ha="center", va="center", fontsize=8,
                          bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip
    axis.invert_yaxis()
    axis.set_xlabel("minutes of wall time")
    axis.grid(False, axis="y")
    legend_below(drawn, [axis], columns=4)
    return drawn
