"""What running a graph costs: the base graph as a block against a feed-forward network written out by hand.

    python -m benchmarks ffn_graph [--threads N] [--repeats N]

Same weights, forward and backward on 1,024 tokens. The two take turns within every repeat, and the ratio is
that of each pair, so that what else the machine does falls on both.
"""

import argparse
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from search_spaces import GELU
from supernet.model.ffn import FFNBlock

SIZES = ((384, 384), (384, 1536), (540, 540), (768, 768))
TOKENS = 1024


class Written(nn.Module):
    """project(gelu(expand(x))), on the weights of `block`."""

    def __init__(self, block: FFNBlock) -> None:
        super().__init__()
        self.expand = block.expand
        self.project = block.project

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.project(F.gelu(self.expand(x_ND), approximate="tanh"))


def base_block(width: int, inner: int) -> FFNBlock:
    config = SimpleNamespace(
        hidden_size=width, layer_norm_eps=1e-12, hidden_dropout_prob=0.0, gelu="tanh", mismatch="narrow"
    )
    return FFNBlock([(node.op, node.inputs) for node in GELU.nodes[1:]], GELU.widths(width, inner), inner, config)


def seconds(function: Callable[[Tensor], Tensor], x_ND: Tensor, gradient_ND: Tensor, calls: int) -> float:
    """Seconds of one forward and backward pass, the mean of `calls`."""
    start = time.perf_counter()
    for _ in range(calls):
        function(x_ND).backward(gradient_ND)
    return (time.perf_counter() - start) / calls


def compare(width: int, inner: int, repeats: int) -> np.ndarray:
    """Seconds (repeats, 2) of the block and of the written-out network, which must compute the same."""
    block = base_block(width, inner)
    written = Written(block)
    x_ND = torch.randn(TOKENS, width, requires_grad=True)
    gradient_ND = torch.randn(TOKENS, width)
    assert torch.equal(block.f(x_ND), written(x_ND))
    calls = max(1, round(0.02 / seconds(written, x_ND, gradient_ND, 5)))
    times = np.empty((repeats, 2))
    functions = (block.f, written)
    for repeat in range(repeats):
        # Neither is always the first.
        for side in (0, 1) if repeat % 2 else (1, 0):
            times[repeat, side] = seconds(functions[side], x_ND, gradient_ND, calls)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="the base graph as a block against a hand-written network")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=80, help="pairs of measurements; default: %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads, {TOKENS:,} tokens, forward and backward")
    print("width  inner   graph ms  written ms  ratio  quartiles of the paired ratios")
    for width, inner in SIZES:
        times = compare(width, inner, arguments.repeats)
        graph, written = 1000 * np.median(times, axis=0)
        low, ratio, high = np.quantile(times[:, 0] / times[:, 1], (0.25, 0.5, 0.75))
        print(
            f"{width:5}  {inner:5}  {graph:9.2f}  {written:10.2f}  {ratio:5.3f}  {low:.3f} to {high:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
