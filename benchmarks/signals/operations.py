"""Whether another graph than the base graph reconstructs the supernet's FFNs better at the same width.

For every layer and width, the channels of the base graph are replaced by those of another graph between `expand` and
`project`: every activation, and every binary operation on two of expand(x), x and their activations. `project` is
solved for again, in closed form, and the predicted loss (`supernet.order.prediction`) is divided by that of the base
graph. All graphs have the same weights in `expand`, and as many parameters; nothing is trained.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import combinations, product
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import Report
from benchmarks.signals.prepared import prepared_inputs
from nas.config.load import load_config
from supernet.model.ffn import BINARY, UNARY
from supernet.module_inputs import module_inputs
from supernet.order.moments import block_moments
from supernet.order.prediction import regression_errors

SHOWN = 12


def channels(block: Any, expanded_NE: Tensor, x_NE: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The channels of every graph with at most one binary operation, by the text of the graph."""
    sources = {"expand(x)": expanded_NE, "x": x_NE}
    values = dict(sources)
    for (name, value), op in product(sources.items(), UNARY):
        values[f"{op}({name})"] = block.apply_op(op, [value])
    yield from ((name, value) for name, value in values.items() if name.endswith("(expand(x))"))
    for op, (left, right) in product(BINARY, combinations(values, 2)):
        if "expand" in left + right:
            yield f"{op}({left},{right})", block.apply_op(op, [values[left], values[right]])


@torch.no_grad()
def ratios(block: Any, x_ND: Tensor, root_DD: Tensor, width: int, base: str) -> dict[str, float]:
    """The predicted loss of every graph at this width, divided by that of the base graph."""
    output_ND = block.f(x_ND).double()
    target_ND = (output_ND - output_ND.mean(dim=0)) @ root_DD
    found = {
        name: float(regression_errors(value_NE, target_ND)[-1])
        for name, value_NE in channels(block, block.expand(x_ND)[:, :width], x_ND[:, :width])
    }
    return {name: error / found[base] for name, error in found.items()}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--widths", type=int, nargs="+", default=[24, 96, 192], help="default: 24 96 192")


def run(options: Namespace, report: Report) -> None:
    config = load_config(options.preset)
    graph, inputs = prepared_inputs(config)
    blocks = [blocks_of_layer[0] for blocks_of_layer in inputs.blocks]
    moments = block_moments(inputs.model, inputs.batches, inputs.sampled_loss)
    states = module_inputs(inputs.model, blocks, inputs.batches)
    base_name = f"{graph.nodes[-2].op}(expand(x))"
    results: dict[str, dict[str, float]] = {}
    for layer, (of_layer, x_ND) in enumerate(zip(moments, states, strict=True)):
        values_D, vectors_DD = torch.linalg.eigh(of_layer[0].metric_DD)
        root_DD = vectors_DD * values_D.clamp(min=0).sqrt()
        for width in options.widths:
            found = ratios(blocks[layer], x_ND, root_DD, width, base_name)
            results[f"layer {layer + 1}, {width} channels"] = found
            best = min(found, key=lambda name: found[name])
            report.progress(f"layer {layer + 1}, {width} channels: {best} {found[best]:.3f}")
    report.save(results, seeds=[config.seed])
    names = list(next(iter(results.values())))
    spread = {name: [found[name] for found in results.values()] for name in names}
    best_first = sorted(names, key=lambda name: median(spread[name]))
    activations = [name for name in names if name.count("(") == 2 and "," not in name]
    shown = [
        *best_first[:SHOWN],
        *(name for name in best_first if name in activations and name not in best_first[:SHOWN]),
    ]
    report.note(
        f"{len(names)} graphs, {len(results)} pairs of a layer and a width; predicted losses relative to {base_name}"
    )
    report.table(
        ("graph", "median", "lowest", "highest"),
        [(name, *(f"{of(spread[name]):.3f}" for of in (median, min, max))) for name in shown],
    )
