"""Figures of what trained models compute: attention, outputs of the FFNs, and the load of experts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nas.report.models import Maps, Sentence
from nas.report.style import BLACK, FILLS, HATCHES, figure, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAP = "cividis"
# Heads in a row of the figure of attention.
HEADS = 6


def attention(sentence: Sentence) -> "Figure":
    """The attention of the last layers' heads (EfficientBERT, figure 7): the teacher's in the upper rows, the student's
    in the lower ones. Rows of a map are the tokens that attend.
    """
    both = [("teacher", sentence.teacher), ("student", sentence.student)]
    rows = [
        (name, head, maps)
        for name, maps in both
        for head in range(0, maps.attention_HTT.shape[0], HEADS)
    ]  # fmt: skip
    columns = max(min(HEADS, maps.attention_HTT.shape[0]) for _, maps in both)
    drawn = figure(1.1 + 1.55 * columns, 1.72 * len(rows) + 0.3)
    axes = drawn.subplots(len(rows), columns, squeeze=False)
    largest = max(float(maps.attention_HTT.max()) for _, maps in both)
    image: Any = None
    for axis_row, (name, first, maps) in zip(axes, rows, strict=True):
        for place, axis in enumerate(axis_row):
            axis.grid(False)
            if first + place >= maps.attention_HTT.shape[0]:
                axis.axis("off")
                continue
            image = axis.imshow(maps.attention_HTT[first + place], cmap=MAP, vmin=0, vmax=largest)
            axis.set_title(f"{name}, head {first + place + 1}", fontsize=7.5, loc="center", weight="normal")
            axis.set_xticks([])
            axis.set_yticks([])
            if place == 0:
                axis.set_yticks(range(len(sentence.tokens)), sentence.tokens, fontsize=5.5)
    drawn.colorbar(image, ax=axes, shrink=0.5, label="attention", aspect=40)
    return drawn


def outputs(sentence: Sentence) -> "Figure":
    """The outputs of the last layers' FFNs (EfficientBERT, figure 8), tokens by channels."""
    both: Sequence[tuple[str, Maps]] = [("teacher", sentence.teacher), ("student", sentence.student)]
    drawn = figure(9, 1.0 + 2 * (0.5 + 0.115 * len(sentence.tokens)))
    axes = drawn.subplots(2, 1)
    last = [maps.outputs_LTD[-1] for _, maps in both]
    # A few channels are far larger than all others and would leave the rest without contrast.
    bound = max(float(np.quantile(np.abs(values), 0.99)) for values in last)
    image: Any = None
    for axis, (name, _), values in zip(axes, both, last, strict=True):
        axis.grid(False)
        image = axis.imshow(values, cmap=MAP, aspect="auto", vmin=-bound, vmax=bound, interpolation="nearest")
        axis.set_title(f"{name}, last layer")
        axis.set_yticks(range(len(sentence.tokens)), sentence.tokens, fontsize=6)
    axes[-1].set_xlabel("channel")
    drawn.colorbar(image, ax=axes, shrink=0.6, label="output", extend="both")
    return drawn


def loads(found: Sequence[Mapping[str, Any]]) -> "Figure":
    """How the experts of every router share the tokens."""
    names = [f"layer {load['layer'] + 1} {load['part']}" if load["layer"] >= 0 else load["part"] for load in found]
    most = max(len(load["shares"]) for load in found)
    drawn = figure(8, 1.3 + 0.42 * len(found))
    axis = drawn.subplots()
    for expert in range(most):
        values = [100 * load["shares"][expert] if expert < len(load["shares"]) else 0.0 for load in found]
        before = [100 * sum(load["shares"][:expert]) for load in found]
        axis.barh(names, values, left=before, height=0.66, color=FILLS[expert % len(FILLS)],
                  hatch=HATCHES[expert % len(HATCHES)], edgecolor=BLACK, lw=0.7,
                  label=f"expert {expert + 1}")  # fmt: skip
        for row, (start, value) in enumerate(zip(before, values, strict=True)):
            if value >= 5:
                axis.text(start + value / 2, row, f"{value:.0f}", ha="center", va="center", fontsize=8,
                          bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("% of the tokens")
    axis.grid(False, axis="y")
    legend_below(drawn, [axis], columns=min(most, 8))
    return drawn
