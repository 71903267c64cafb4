"""Figures of what wins in which layer: operations and widths."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nas.report.data import Candidate, Stage
from nas.report.style import BLACK, ORANGE, figure, legend_below
from search_spaces.architecture import Architecture
from search_spaces.operations import LINEAR, OPERATIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_FFN = "no FFN"
# The share of the candidates that count as the top, and the smallest number of them.
TOP, LEAST = 0.1, 5
# The area of a mark that stands for all candidates, in square points.
AREA = 260


def top(stage: Stage) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates with the best scores, a tenth but at least five, and all of them: proposals of the sampler within
    the budget, without baselines.
    """
    proposed = [c for c in stage.within_budget if c.proposed and c.architecture is not None]
    ranked = sorted(proposed, key=lambda c: -(c.score or 0.0))
    return ranked[: max(LEAST, round(TOP * len(ranked)))], ranked


def operation_shares(candidates: Sequence[Candidate], depth: int) -> dict[str, list[float]]:
    """For every operation the share of the candidates that have it in each layer, apart from the linear maps that all
    graphs have; operations that none has are left out.
    """
    counts: dict[str, list[float]] = {name: [0.0] * depth for name in (NO_FFN, "gate", *OPERATIONS)}
    for candidate in candidates:
        for layer, found in enumerate(_operations(candidate.architecture)):
            for name in found:
                counts[name][layer] += 1 / len(candidates)
    return {name: shares for name, shares in counts.items() if any(shares)}


def _operations(architecture: Architecture | None) -> list[set[str]]:
    assert architecture is not None
    fixed = {"x", *LINEAR} - {"gate"}
    return [
        {node.op for node in genes.graph.nodes} - fixed if genes.stack else {NO_FFN} for genes in architecture.layers
    ]


def operations(stage: Stage) -> "Figure":
    """Which operations the best candidates have, by layer: their share and, in brackets, that of all candidates."""
    from matplotlib.colors import LinearSegmentedColormap

    best, all_of_them = top(stage)
    depth = _depth(all_of_them)
    whole = operation_shares(all_of_them, depth)
    chosen = operation_shares(best, depth)
    names = sorted(whole, key=lambda name: -sum(whole[name]))
    shares = np.array([chosen.get(name, [0.0] * depth) for name in names])
    difference = shares - np.array([whole[name] for name in names])
    drawn = figure(max(5.5, 1.6 + 0.95 * depth), 1.6 + 0.42 * len(names))
    axis = drawn.subplots()
    axis.grid(False)
    # From orange, which is dark enough in grey, over white to blue; the signs are in the text, too.
    colours = LinearSegmentedColormap.from_list("shares", ["#E69F00", "#FFFFFF", "#56B4E9"])
    image = axis.imshow(difference, cmap=colours, vmin=-1, vmax=1, aspect="auto")
    for row, name in enumerate(names):
        for layer in range(depth):
            sign = "" if abs(difference[row, layer]) < 0.05 else "▲ " if difference[row, layer] > 0 else "▼ "
            text = f"{sign}{100 * shares[row, layer]:.0f} ({100 * whole[name][layer]:.0f})"
            axis.text(layer, row, text, ha="center", va="center", fontsize=8)
    axis.set_yticks(range(len(names)), names)
    axis.set_xticks(range(depth), [f"layer {layer + 1}" for layer in range(depth)])
    bar = drawn.colorbar(image, ax=axis, shrink=0.8, ticks=[-1, 0, 1])
    bar.ax.set_yticklabels(["only others", "as in all", "only the best"])
    bar.outline.set_linewidth(0.5)
    axis.set_title(f"% of the best {len(best)} (of all {len(all_of_them)})")
    return drawn


def inner_neurons(candidate: Candidate) -> list[int]:
    """The inner neurons of every layer: the inner width times the number of blocks; of one expert, if there are any."""
    architecture = candidate.architecture
    assert architecture is not None
    return [genes.stack * genes.inner(architecture.base) for genes in architecture.layers]


def widths(stage: Stage) -> "Figure":
    """How the best candidates distribute their inner neurons over the layers, beside all candidates."""
    best, all_of_them = top(stage)
    depth = _depth(all_of_them)
    drawn = figure(max(5.5, 1.2 + 0.95 * depth), 3.8)
    axis = drawn.subplots()
    groups = ((all_of_them, -0.2, "white", "o", "all candidates"), (best, 0.2, ORANGE, "D", "the best ones"))
    for candidates, shift, colour, marker, label in groups:
        columns_LN = np.array([inner_neurons(candidate) for candidate in candidates]).T
        for layer, values_N in enumerate(columns_LN, start=1):
            values, counts = np.unique(values_N, return_counts=True)
            place = layer + shift
            axis.scatter([place] * len(values), values, s=AREA * counts / len(values_N), marker=marker,
                         facecolors=colour, edgecolors=BLACK, linewidths=0.7)  # fmt: skip
            axis.hlines(np.median(values_N), place - 0.19, place + 0.19, color=BLACK, lw=2, zorder=4)
        axis.scatter(
            [], [], s=50, marker=marker, facecolors=colour, edgecolors=BLACK, label=f"{label} ({len(candidates)})"
        )
    axis.plot([], [], color=BLACK, lw=2, label="median")
    axis.set_xticks(range(1, depth + 1), [f"layer {layer}" for layer in range(1, depth + 1)])
    axis.set_ylabel("inner width × blocks")
    axis.set_ylim(bottom=-0.04 * axis.get_ylim()[1])  # marks at 0 are whole
    axis.grid(False, axis="x")
    legend_below(drawn, [axis])
    return drawn


def _depth(candidates: Sequence[Candidate]) -> int:
    architecture = candidates[0].architecture
    assert architecture is not None
    return architecture.base.depth
