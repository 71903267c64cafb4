"""The drawing of an architecture as SVG (EfficientBERT, figure 6): an artifact of every trial, which the dashboard
shows on the trial's page, and a figure of the report.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path

import networkx as nx
import optuna
from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta, upload_artifact

from foundation.files import scratch_folder
from nas.study import ledger
from nas.study.storage import storage_of
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.genes import outside_ffns
from search_spaces.graph import FFNGraph
from search_spaces.layer import DENSE, FFN, Layer
from search_spaces.operations import BINARY, LINEAR

# In pixels: the space for a layer's number and sizes, a column and a lane of nodes, and a node.
LEFT, COLUMN, LANE, WIDTH, HEIGHT = 230, 100, 34, 78, 24
# By how much an edge rises that passes over nodes, and the space between two layers.
RISE, MARGIN = 22, 12


def svg(architecture: Architecture) -> str:
    """The graph of every layer, the lowest on top: linear maps are rectangles with the width of their output,
    activations have round corners, binary operations are ellipses. Experts in attention and head are named above them.
    """
    parts: list[str] = []
    top, width = MARGIN, LEFT
    if whole := outside_ffns(architecture):
        parts.append(_text(8, top + 7, whole, 'font-size="11"'))
        top, width = top + 14 + MARGIN, LEFT + 2 * COLUMN
    for number, layer in enumerate(architecture.layers, start=1):
        ffn = layer.ffn
        places, height = layout(ffn.graph) if ffn.stack else ({}, 2 * HEIGHT)
        middle = top + height // 2
        parts += _label(number, layer, architecture.base, middle)
        if ffn.stack:
            parts += _edges(ffn.graph, places, middle)
            parts += _nodes(ffn, architecture.base, places, middle)
            width = max(width, *(LEFT + x + WIDTH for x, _ in places.values()))
        top += height + MARGIN
        parts.append(f'<path d="M0 {top - MARGIN // 2} h9999" stroke="#ccc"/>')
    size = f'width="{width + MARGIN}" height="{top}" viewBox="0 0 {width + MARGIN} {top}"'
    style = 'font-family="sans-serif" font-size="12" fill="none" stroke="#222"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#222" stroke="none"/></marker></defs>'
        f'<rect width="100%" height="100%" fill="#fff" stroke="none"/>{"".join(parts)}</svg>\n'
    )


def add_drawing(study: optuna.Study, number: int, folder: Path) -> None:
    """Store the drawing of a running trial as an artifact in this folder, unless it has one from an earlier attempt."""
    trial = study.get_trials(deepcopy=False)[number]
    if get_all_artifact_meta(trial, storage=storage_of(study)):
        return
    folder.mkdir(exist_ok=True)
    with scratch_folder() as scratch:
        file = scratch / "architecture.svg"
        file.write_text(svg(ledger.architecture_of(trial)), encoding="utf-8")
        upload_artifact(
            artifact_store=FileSystemArtifactStore(folder),
            file_path=str(file),
            study_or_trial=trial,
            storage=storage_of(study),
        )


def layout(graph: FFNGraph) -> tuple[dict[int, tuple[int, int]], int]:
    """The left side and the middle of every node, relative to the middle of the layer's row, and the row's height: a
    column for each topological generation, so that all edges lead to the right.
    """
    places: dict[int, tuple[int, int]] = {}
    lanes, digraph = 1, graph.digraph
    for column, generation in enumerate(nx.topological_generations(digraph)):
        nodes = sorted(generation)
        lanes = max(lanes, len(nodes))
        places |= {
            node: (column * COLUMN, lane * LANE - (len(nodes) - 1) * LANE // 2) for lane, node in enumerate(nodes)
        }
    passing = any(places[target][0] - places[source][0] > COLUMN for source, target in digraph.edges)
    return places, lanes * LANE + (3 * RISE if passing else 0)


def _text(x: int, y: int, text: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y + 4}" fill="#222" stroke="none" {more}>{escape(text)}</text>'


def _label(number: int, layer: Layer, base: Base, middle: int) -> Iterator[str]:
    ffn, heads = layer.ffn, layer.attention.heads
    sizes = "left out" if layer.left_out else "no FFN"
    if ffn.stack:
        blocks = f"{ffn.stack} blocks × " if ffn.stack > 1 else ""
        sizes = f"{blocks}{ffn.inner(base):,} wide"
    if heads < base.heads and not layer.left_out:
        sizes = f"{heads} of {base.heads} heads, {sizes}"
    lines = [sizes, *([f"experts: {ffn.experts}"] if ffn.stack and ffn.experts != DENSE else [])]
    first = middle - 7 * len(lines)
    yield _text(8, first, f"layer {number}", 'font-weight="bold"')
    for place, line in enumerate(lines, start=1):
        yield _text(8, first + 14 * place, line, 'font-size="11"')


def _edges(graph: FFNGraph, places: dict[int, tuple[int, int]], middle: int) -> Iterator[str]:
    for source, target, positions in sorted(graph.digraph.edges(data="position")):
        (left, y0), (right, y1) = places[source], places[target]
        x0, x1, y0, y1 = LEFT + left + WIDTH, LEFT + right, middle + y0, middle + y1
        line = f"M{x0} {y0} L{x1} {y1}"
        if right - left > COLUMN:  # past the nodes between, above them or, from a lower lane, below
            side = 1 if y0 > middle else -1
            x0, y0, y1 = x0 - WIDTH // 2, y0 + side * HEIGHT // 2, y1 + side * HEIGHT // 2
            far = side * max(side * y0, side * y1) + side * 2 * RISE
            line = f"M{x0} {y0} C{x0 + COLUMN // 2} {far} {x1} {far} {x1 + WIDTH // 2} {y1}"
        yield f'<path d="{line}" marker-end="url(#end)"/>'
        if len(positions) > 1:
            yield _text((x0 + x1) // 2 - 12, (y0 + y1) // 2 - 9, "both", 'font-size="10"')


def _nodes(ffn: FFN, base: Base, places: dict[int, tuple[int, int]], middle: int) -> Iterator[str]:
    widths = ffn.graph.widths(base.width, ffn.inner(base), base.mismatch)
    for number, node in enumerate(ffn.graph.nodes):
        x, y, text = LEFT + places[number][0], middle + places[number][1], node.op
        shape = f'x="{x}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}"'
        if node.op in LINEAR:
            text = f"{node.op} {widths[number]}"
            yield f'<rect {shape} fill="#cfe4f5"/>'
        elif node.op in BINARY:
            yield f'<ellipse cx="{x + WIDTH // 2}" cy="{y}" rx="{WIDTH // 2}" ry="{HEIGHT // 2}" stroke-width="2"/>'
        elif node.op == "x":
            text = f"x {widths[number]}"
            yield f'<rect {shape} fill="none" stroke="#aaa"/>'
        else:
            yield f'<rect {shape} rx="11" fill="#fbe5bd"/>'
        yield _text(x + WIDTH // 2, y, text, 'text-anchor="middle"')
