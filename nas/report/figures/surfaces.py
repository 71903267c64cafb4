"""The figure of nonlinearity surfaces."""

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from nas.report import surface
from nas.report.style import BLACK, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 4


def surfaces(shown: Mapping[str, np.ndarray]) -> "Figure":
    """Surfaces over the two inputs, one for each title, all seen from the same side; each has its own vertical axis,
    because what is compared is the form.
    """
    from mpl_toolkits.mplot3d import axes3d  # noqa: F401  (adds the projection)

    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    drawn = figure(2.9 * columns, 2.95 * rows)
    one, two = surface.grid()
    for place, (title, values) in enumerate(shown.items(), start=1):
        axis = drawn.add_subplot(rows, columns, place, projection="3d")
        axis.plot_surface(one, two, values, cmap="cividis", rstride=2, cstride=2, lw=0.25, edgecolor=BLACK)
        axis.set_title(wrapped(title), fontsize=8.5, loc="center", pad=0)
        axis.tick_params(labelsize=6.5, pad=-2)
        axis.set_xticks([-15, -5, 5])
        axis.set_yticks([-15, -5, 5])
        axis.locator_params(axis="z", nbins=4)
        axis.view_init(elev=24, azim=-125)
        axis.set_box_aspect(None, zoom=0.9)
    return drawn


def wrapped(title: str) -> str:
    """The title in lines that end after a bracket or a comma of a formula rather than within a name."""
    lines = textwrap.wrap(title.replace("(", "( ").replace(",", ", "), 30)
    return "\n".join(line.replace("( ", "(") for line in lines)
