"""Drawings of architectures, layer by layer (EfficientBERT, figure 6)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import networkx as nx

from nas.report.style import BLACK, GREY, LIGHT, ORANGE, SKY
from search_spaces.architecture import DENSE, Architecture, Genes
from search_spaces.base import Base
from search_spaces.graph import FFNGraph
from search_spaces.operations import BINARY, LINEAR
from search_spaces.variants import experts_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Sizes in units of the drawing: of a column and a lane of nodes, and of a node.
COLUMN, LANE, WIDTH, HEIGHT = 1.12, 0.52, 0.84, 0.36
# The width of the input.
INPUT = 0.44
# By how much an edge that skips columns rises above the nodes that it passes.
RISE = 0.36
LEFT, RIGHT = 2.2, 1.9
INCH = 0.82


@dataclass(frozen=True)
class Placed:
    """The graph of a layer with places for its nodes.

    Attributes:
        places: the column of every node, and its height above the middle of the row.
        skips: the edges that pass over nodes, with the side on which they do: 1 above, -1 below.
        height: of the row.
    """

    places: dict[int, tuple[float, float]]
    skips: dict[tuple[int, int], int]
    height: float

    @property
    def columns(self) -> float:
        return max(column for column, _ in self.places.values()) + 1


def placed(graph: FFNGraph) -> Placed:
    """Places for the nodes of a graph: one column for each topological generation, so that all edges lead to the
    right.
    """
    places: dict[int, tuple[float, float]] = {}
    lanes = 1
    for column, generation in enumerate(nx.topological_generations(graph.digraph)):
        nodes = sorted(generation)
        lanes = max(lanes, len(nodes))
        for lane, node in enumerate(nodes):
            places[node] = column, LANE * ((len(nodes) - 1) / 2 - lane)
    skips: dict[tuple[int, int], int] = {}
    for source, target in sorted(graph.digraph.edges):
        if places[target][0] - places[source][0] > 1:
            skips[source, target] = 1 if len(skips) % 2 == 0 else -1
    sides = len(set(skips.values()))
    return Placed(places, skips, 0.62 + LANE * (lanes - 1) + RISE * sides)


def architecture(architecture: Architecture) -> "Figure":
    """An architecture: for every layer the graph of its blocks, how many there are, how wide they are, its experts, and
    the number of its inner neurons as a bar. The lowest layer is on top, below the experts of attention and head.
    """
    from matplotlib.figure import Figure

    rows = [placed(genes.graph) for genes in architecture.layers]
    columns = max(row.columns for row in rows)
    width, height = LEFT + COLUMN * columns + RIGHT, sum(row.height for row in rows) + 0.5
    drawn = Figure((INCH * width, INCH * height))
    axis = drawn.add_axes((0, 0, 1, 1))
    axis.set_xlim(0, width)
    axis.set_ylim(-height, 0)
    axis.axis("off")
    start = LEFT + COLUMN * columns
    largest = max(1, *(_neurons(genes, architecture.base) for genes in architecture.layers))
    axis.text(start, -0.3, "inner neurons", fontsize=8.5, va="center", color=BLACK)
    if whole := experts_in_words(architecture.base):
        axis.text(0.1, -0.3, whole, fontsize=8.5, va="center", color=BLACK)
    middle = -0.5
    for number, (genes, row) in enumerate(zip(architecture.layers, rows, strict=True), start=1):
        if number > 1:
            axis.axhline(middle, color=LIGHT, lw=0.8)
        middle -= row.height / 2
        _label(axis, number, genes, architecture.base, middle)
        if genes.stack:
            _graph(axis, genes, architecture.base, row, middle)
        else:
            axis.text(LEFT, middle, "no FFN: the layer's output is its attention's", va="center", style="italic")
        _bar(axis, start, middle, _neurons(genes, architecture.base), largest)
        middle -= row.height / 2
    return drawn


def _neurons(genes: Genes, base: Base) -> int:
    """The inner neurons of a layer, of all its blocks and experts."""
    return genes.stack * genes.inner(base) * (genes.experts.count if genes.stack else 1)


def _label(axis: Any, number: int, genes: Genes, base: Base, middle: float) -> None:
    """Write the layer's number, stack, expansion and experts at the left."""
    lines = []
    if genes.stack:
        blocks = f"{genes.stack} blocks × " if genes.stack > 1 else ""
        lines.append(f"{blocks}{genes.inner(base):,} wide ({genes.expansion})")
    if genes.experts != DENSE:
        kept = [f"{genes.experts.count} experts, {genes.experts.routing}"]
        kept += [f"top {genes.experts.top_k}"] if genes.experts.top_k > 1 else []
        lines += [", ".join(kept), f"shared {genes.experts.shared}"]
    axis.text(0.1, middle + 0.1 * len(lines), f"layer {number}", weight="bold", va="center", fontsize=9)
    axis.text(0.1, middle + 0.1 * len(lines) - 0.14, "\n".join(lines), va="top", fontsize=7.5, linespacing=1.15)


def _graph(axis: Any, genes: Genes, base: Base, row: Placed, middle: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    widths = genes.graph.widths(base.width, genes.inner(base), base.mismatch)

    def centre(node: int) -> tuple[float, float]:
        column, height = row.places[node]
        return LEFT + COLUMN * column + WIDTH / 2, middle + height

    for source, target in genes.graph.digraph.edges:
        (x0, y0), (x1, y1) = centre(source), centre(target)
        rad = 0.0
        if side := row.skips.get((source, target), 0):
            # An arc of this curvature rises to `RISE` and leaves the boxes at their upper or lower sides.
            rad = -side * 2 * (RISE + HEIGHT / 4) / (x1 - x0)
            y0, y1 = y0 + side * HEIGHT / 2, y1 + side * HEIGHT / 2
        else:
            x0, x1 = x0 + (INPUT if source == 0 else WIDTH) / 2, x1 - WIDTH / 2
        arrow = FancyArrowPatch(
            (x0, y0), (x1, y1), connectionstyle=f"arc3,rad={rad}", arrowstyle="-|>", mutation_scale=8, lw=0.9,
            color=BLACK, shrinkA=0, shrinkB=0,
        )  # fmt: skip
        axis.add_patch(arrow)
        if len(genes.graph.digraph.edges[source, target]["position"]) > 1:
            axis.text((x0 + x1) / 2, (y0 + y1) / 2 + 0.12, "both", fontsize=6.5, ha="center")
    for number, node in enumerate(genes.graph.nodes):
        _node(axis, node.op, widths[number], *centre(number))


def _node(axis: Any, op: str, width: int, x: float, y: float) -> None:
    """One node: linear maps are hatched rectangles with their output width, activations have rounded corners, binary
    operations are ellipses with a thick edge.
    """
    from matplotlib.patches import Ellipse, FancyBboxPatch, Rectangle

    corner = x - WIDTH / 2, y - HEIGHT / 2
    text = op
    patch: Any
    if op == "x":
        patch, text = Ellipse((x, y), INPUT, HEIGHT, fc="white", ec=GREY, lw=1), f"x\n{width}"
    elif op in LINEAR:
        patch, text = Rectangle(corner, WIDTH, HEIGHT, fc=SKY, ec=BLACK, lw=1), f"{op}\n→ {width}"
    elif op in BINARY:
        patch = Ellipse((x, y), WIDTH, HEIGHT, fc="white", ec=BLACK, lw=2)
    else:
        style = "round,pad=0,rounding_size=0.16"
        patch = FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, fc="#F6D38A", ec=ORANGE, lw=1)
    axis.add_patch(patch)
    axis.text(x, y, text, ha="center", va="center", fontsize=7 if "\n" in text else 8, linespacing=0.95)


def _bar(axis: Any, start: float, middle: float, neurons: int, largest: int) -> None:
    from matplotlib.patches import Rectangle

    length = 1.15 * neurons / largest
    axis.add_patch(Rectangle((start, middle - 0.13), length, 0.26, fc=LIGHT, ec=BLACK, lw=0.8, hatch="////"))
    axis.text(start + length + 0.06, middle, f"{neurons:,}", va="center", fontsize=8)
