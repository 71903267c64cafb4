"""What experts cost: one layer's FFN as experts against dense ones and against MoEBERT's own scheme.

    python -m benchmarks experts [--threads N] [--repeats N] [--precision P] [--device cpu|cuda] [--layouts]

Hash routing with a random table, on random token ids without padding. Every time includes the routing, the residual
and the LayerNorm. All layers take turns within every repeat, and ratios are of times of one repeat, so that what else
the machine does falls on all. `dense` has the inner width of one expert, `whole` that of all experts together.

MoEBERT's scheme, written from its description: sort the tokens by expert, count them, cut the rows, run a complete
expert (with a residual and a LayerNorm of its own) on each part, join, and sort back with a second sort.

`bare` is what products alone take: each expert works on its equal share of the rows as they lie, without any routing.

The precision is `float32`, `autocast` (to bfloat16, as in training) or `bfloat16` (weights too).

Freed memory is kept (where the C library is glibc). Otherwise it is chance, for gradients of some megabytes,
whether each pass gets its memory anew from the system, which takes longer than the products of 128 tokens.

--layouts compares the two ways in which products of experts are computed, over widths:
`supernet.model.routing.BATCHED` is chosen from this.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from distill.cpu.allocator import keep_freed_memory
from search_spaces import GELU
from supernet.model.ffn import FFNBlock, is_batched
from supernet.model.routing import Router, Tokens

VOCABULARY = 30522
LENGTH = 128
# Tokens, width, inner width of an expert, experts.
SIZES = (
    (128, 768, 768, 4),
    (1024, 768, 768, 4),
    (4096, 768, 768, 4),
    (128, 384, 384, 4),
    (1024, 384, 384, 4),
    (1024, 384, 96, 8),
    (512, 128, 128, 4),
)
LAYOUT_SIZES = tuple((512, width, inner, 4) for width in (64, 128, 256, 384) for inner in (16, 64, 128, 256, 512))


class Layer(nn.Module):
    """An FFN as a model has it: dense, or experts behind a hash."""

    def __init__(self, width: int, inner: int, experts: int, batched: bool | None = None) -> None:
        super().__init__()
        config = SimpleNamespace(
            hidden_size=width,
            layer_norm_eps=1e-12,
            hidden_dropout_prob=0.0,
            gelu="tanh",
            mismatch="narrow",
            vocab_size=VOCABULARY,
            router_jitter_noise=0.0,
        )
        genes = {"count": experts, "routing": "hash", "top_k": 1, "capacity": None} if experts > 1 else None
        program = [(node.op, node.inputs) for node in GELU.nodes[1:]]
        self.block = FFNBlock(program, GELU.widths(width, inner), inner, config, genes)
        self.router = None
        if genes:
            self.router = Router(genes, config, is_batched(width, inner) if batched is None else batched)
            self.router.table = torch.randint(experts, (VOCABULARY,)).to(torch.uint8)
        for parameter in self.block.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, hidden_BTD: Tensor, ids_BT: Tensor) -> Tensor:
        if self.router is None:
            return self.block(hidden_BTD)
        tokens = Tokens(ids_BT, None)
        return self.block(hidden_BTD, tokens, self.router(hidden_BTD, tokens))


class WholeExpert(nn.Module):
    """An expert as MoEBERT has it, the residual and the LayerNorm inside."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.expand, self.project = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.norm(x_ND + self.project(F.gelu(self.expand(x_ND), approximate="tanh")))


class Published(nn.Module):
    """MoEBERT's scheme."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(WholeExpert(width, inner) for _ in range(experts))
        self.table = torch.randint(experts, (VOCABULARY,))

    def forward(self, hidden_BTD: Tensor, ids_BT: Tensor) -> Tensor:
        x_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
        expert_N = self.table.to(ids_BT.device)[ids_BT.reshape(-1)]
        order_N = expert_N.argsort()
        counts = F.one_hot(expert_N, len(self.experts)).sum(dim=0).tolist()
        parts = x_ND[order_N].split(counts)
        joined_ND = torch.vstack([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return joined_ND[order_N.argsort()].view(hidden_BTD.shape)


class Bare(nn.Module):
    """Experts on equal consecutive parts of the batch."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.expand = nn.ModuleList(nn.Linear(width, inner) for _ in range(experts))
        self.project = nn.ModuleList(nn.Linear(inner, width) for _ in range(experts))
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, hidden_BTD: Tensor, ids_BT: Tensor) -> Tensor:
        x_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
        parts = zip(self.expand, x_ND.chunk(len(self.expand)), strict=True)
        inner_NE = F.gelu(torch.cat([expand(part) for expand, part in parts]), approximate="tanh")
        parts = zip(self.project, inner_NE.chunk(len(self.project)), strict=True)
        return self.norm(x_ND + torch.cat([project(part) for project, part in parts])).view(hidden_BTD.shape)


def measure(
    layers: Sequence[nn.Module], tokens: int, width: int, repeats: int, device: str, precision: str, backward: bool
) -> np.ndarray:
    """Seconds (repeats, layers), the layers taking turns."""
    shape = max(1, tokens // LENGTH), min(LENGTH, tokens), width
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    hidden_BTD = torch.randn(shape, device=device, dtype=dtype, requires_grad=backward)
    ids_BT = torch.randint(VOCABULARY, hidden_BTD.shape[:2], device=device)
    gradient_BTD = torch.randn_like(hidden_BTD)
    times = np.empty((repeats, len(layers)))

    def once(layer: nn.Module) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "autocast"), torch.set_grad_enabled(backward):
            output_BTD = layer(hidden_BTD, ids_BT)
        if backward:
            output_BTD.backward(gradient_BTD.to(output_BTD.dtype))
            layer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    rng = np.random.default_rng(0)
    for repeat in range(-3, repeats):  # the first three are not counted
        for number in rng.permutation(len(layers)):
            # Twice: the first pass brings weights back into the caches that other layers have driven out.
            once(layers[number])
            start = time.perf_counter()
            once(layers[number])
            times[repeat, number] = time.perf_counter() - start
    return times


def placed(layer: nn.Module, arguments: argparse.Namespace) -> nn.Module:
    layer = layer.to(arguments.device)
    return layer.bfloat16() if arguments.precision == "bfloat16" else layer


def ratio(times: np.ndarray, one: int, other: int) -> str:
    low, middle, high = np.quantile(times[:, one] / times[:, other], (0.25, 0.5, 0.75))
    return f"{middle:5.2f} ({low:.2f} to {high:.2f})"


def compare(arguments: argparse.Namespace) -> None:
    ratios = ("experts/dense", "whole/experts", "published/experts", "bare/dense")
    print("tokens  width  experts      pass   dense ms  " + "  ".join(f"{name:20}" for name in ratios).rstrip())
    for tokens, width, inner, experts in SIZES:
        layers: list[nn.Module] = [
            Layer(width, inner, 1),
            Layer(width, inner, experts),
            Layer(width, experts * inner, 1),
            Published(width, inner, experts),
            Bare(width, inner, experts),
        ]
        layers = [placed(layer, arguments) for layer in layers]
        for name, backward in (("forward", False), ("both", True)):
            repeats = max(10, arguments.repeats // (1 + tokens // 1024))
            times = measure(layers, tokens, width, repeats, arguments.device, arguments.precision, backward)
            print(
                f"{tokens:6}  {width:5}  {f'{experts} of {inner}':>9}  {name:>8}  {1e3 * np.median(times[:, 0]):9.2f}  "
                f"{ratio(times, 1, 0)}  {ratio(times, 2, 1)}  {ratio(times, 3, 1)}  {ratio(times, 4, 0)}",
                flush=True,
            )


def compare_layouts(arguments: argparse.Namespace) -> None:
    print("tokens  width  inner  experts      pass  sorted ms  padded ms  padded/sorted")
    for tokens, width, inner, experts in LAYOUT_SIZES:
        layers = [placed(Layer(width, inner, experts, batched), arguments) for batched in (False, True)]
        for name, backward in (("forward", False), ("both", True)):
            times = measure(layers, tokens, width, arguments.repeats, arguments.device, arguments.precision, backward)
            plain, padded = 1e3 * np.median(times, axis=0)
            print(
                f"{tokens:6}  {width:5}  {inner:5}  {experts:7}  {name:>8}  {plain:9.2f}  {padded:9.2f}  "
                f"{ratio(times, 1, 0)}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="experts against dense feed-forward networks and MoEBERT's scheme")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=60, help="fewer at many tokens; default: %(default)s")
    parser.add_argument("--precision", default="float32", choices=["float32", "autocast", "bfloat16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--layouts", action="store_true", help="compare sorted and padded rows")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    threads = f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {arguments.device}, {threads}, {arguments.precision}")
    run: Callable[[argparse.Namespace], None] = compare_layouts if arguments.layouts else compare
    keep_freed_memory()
    run(arguments)


if __name__ == "__main__":
    main()
