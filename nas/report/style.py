"""How figures look: readable in black and white and by colour-blind people.

Nothing is told by colour alone: series also differ in markers, line styles or hatches. The colours are those of Okabe
and Ito (2008).
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nas.finalists import ALLOCATED, BASE_MODEL, GLOBAL, UNIFORM, WINNER, WINNER_WITH_BASE_GRAPHS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY, LIGHT = "#767676", "#D9D9D9"
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oo", "--")
FILLS = (SKY, ORANGE, LIGHT, YELLOW, GREEN, PURPLE, "#FFFFFF", BLUE)
# The marker and colour of each baseline by its origin.
BASELINE_MARKS: dict[str, tuple[str, str]] = {
    BASE_MODEL: ("P", BLACK),
    UNIFORM: ("s", ORANGE),
    GLOBAL: ("D", SKY),
    ALLOCATED[0]: ("v", GREEN),
    ALLOCATED[1]: ("<", GREEN),
    ALLOCATED[2]: (">", GREEN),
    WINNER: ("X", PURPLE),
    WINNER_WITH_BASE_GRAPHS: ("h", PURPLE),
}
# The marker and colour of each stage.
STAGE_MARKS = {"1": ("o", BLUE), "2": ("s", ORANGE), "3": ("^", GREEN)}
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
    "hatch.linewidth": 0.6,
    "hatch.color": "#333333",
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


def legend_below(drawn: "Figure", axes: Any, columns: int = 3) -> None:
    """One legend for several axes below the figure, each label once."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        drawn.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
