"""What running a graph costs: the base graph as a block against a feed-forward network written out by hand.

Both have the same weights and do forward and backward passes on 1,024 tokens. They take turns, and ratios are of times
of one round.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measuring import ratio, summarise, take_turns
from benchmarks.report import Report
from search_spaces import GELU
from supernet.model.ffn import FFNBlock

SIZES = ((384, 384), (384, 1536), (540, 540), (768, 768))
TOKENS = 1024
SEED = 0
# A measurement repeats the passes for about this long, in seconds.
LENGTH = 0.02


class Written(nn.Module):
    """project(gelu(expand(x))), with the weights of a block."""

    def __init__(self, block: FFNBlock) -> None:
        super().__init__()
        self.expand = block.expand
        self.project = block.project

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.project(F.gelu(self.expand(x_ND), approximate="tanh"))


def base_block(width: int, inner: int) -> FFNBlock:
    """The base graph as the student runs it, with random weights."""
    config = SimpleNamespace(
        hidden_size=width, layer_norm_eps=1e-12, hidden_dropout_prob=0.0, gelu="tanh", mismatch="narrow"
    )
    return FFNBlock([(node.op, node.inputs) for node in GELU.nodes[1:]], GELU.widths(width, inner), inner, config)


def seconds(function: Callable[[Tensor], Tensor], x_ND: Tensor, gradient_ND: Tensor, calls: int) -> float:
    """Seconds of a forward and a backward pass, the mean of `calls`."""
    started = time.perf_counter()
    for _ in range(calls):
        function(x_ND).backward(gradient_ND)
    return (time.perf_counter() - started) / calls


def compare(width: int, inner: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of a pass of the graph and of the written network, which must compute the same, in every round."""
    block = base_block(width, inner)
    written = Written(block)
    x_ND = torch.randn(TOKENS, width, requires_grad=True)
    gradient_ND = torch.randn(TOKENS, width)
    assert torch.equal(block.f(x_ND), written(x_ND))
    calls = max(1, round(LENGTH / seconds(written, x_ND, gradient_ND, 5)))
    sides = {
        "graph": lambda _: seconds(block.f, x_ND, gradient_ND, calls),
        "written": lambda _: seconds(written, x_ND, gradient_ND, calls),
    }
    return take_turns(sides, range(rounds))


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=80, help="rounds of measurements; default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    results, rows = {}, []
    for width, inner in SIZES:
        name = f"{width} / {inner}"
        times = results[name] = compare(width, inner, options.repeats)
        graph, written = (f"{1000 * summarise(values).median:.2f}" for values in times.values())
        rows.append((name, graph, written, ratio(times["graph"], times["written"]).with_quartiles(3)))
        report.progress(f"{name}: done")
    columns = ("width / inner", "graph, ms", "written, ms", "graph / written (quartiles)")
    report.table(columns, rows, f"Forward and backward, {TOKENS:,} tokens, {options.threads} threads")
    report.save({"seconds": results}, seeds=[SEED])
