"""What experts cost: one layer's FFN as experts, against dense ones and against MoEBERT's own scheme.

Hash routing with a random table, on random token ids without padding. All times include the routing, the residual and
the LayerNorm. All layers take turns, and ratios are of times of one round. `dense` has the inner width of one expert,
`whole` that of all experts together.

`published` is MoEBERT's scheme, written from its description: sort the tokens by expert, count them, cut the rows, run
a complete expert (with a residual and a LayerNorm of its own) on each part, join the parts, and sort back with a second
sort. `bare` is what the products alone take: each expert works on its equal share of the rows as they lie, without any
routing.

The precision is `float32`, `autocast` (to bfloat16, as in training) or `bfloat16` (weights too).

With glibc, the process keeps the memory that it frees. Otherwise it is left to chance whether every pass requests the
memory for gradients of some megabytes from the system again, which takes longer than the products of 128 tokens.

--layouts compares the two ways in which products of experts are computed, over widths:
`supernet.model.expert_linear.BATCHED` is chosen from this.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measuring import ratio, summarise, take_turns
from benchmarks.report import Report
from distill.cpu.allocator import keep_freed_memory
from search_spaces import GELU
from supernet.model.dispatch import Tokens
from supernet.model.expert_linear import is_batched
from supernet.model.ffn import FFNBlock
from supernet.model.routing import TableRouter

VOCABULARY = 30522
LENGTH = 128
SEED = 0
# Rounds that are not counted.
WARMUP = 3
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
            capacity_per="sentence",
        )
        genes = {"count": experts, "routing": "hash", "top_k": 1, "capacity": None} if experts > 1 else None
        program = [(node.op, node.inputs) for node in GELU.nodes[1:]]
        self.block = FFNBlock(program, GELU.widths(width, inner), inner, config, genes)
        self.router = None
        if genes:
            self.router = TableRouter(genes, config, is_batched(width, inner) if batched is None else batched)
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


def layers_of(width: int, inner: int, experts: int) -> dict[str, nn.Module]:
    """What is compared, by name."""
    return {
        "dense": Layer(width, inner, 1),
        "experts": Layer(width, inner, experts),
        "whole": Layer(width, experts * inner, 1),
        "published": Published(width, inner, experts),
        "bare": Bare(width, inner, experts),
    }


def measure(
    layers: Mapping[str, nn.Module], tokens: int, width: int, rounds: int, options: Namespace, backward: bool
) -> dict[str, list[float]]:
    """Seconds of a pass of each layer in every round."""
    device, precision = options.device, options.precision
    shape = max(1, tokens // LENGTH), min(LENGTH, tokens), width
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    hidden_BTD = torch.randn(shape, device=device, dtype=dtype, requires_grad=backward)
    ids_BT = torch.randint(VOCABULARY, hidden_BTD.shape[:2], device=device)
    gradient_BTD = torch.randn_like(hidden_BTD)

    def one_pass(layer: nn.Module) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "autocast"), torch.set_grad_enabled(backward):
            output_BTD = layer(hidden_BTD, ids_BT)
        if backward:
            output_BTD.backward(gradient_BTD.to(output_BTD.dtype))
            layer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    def seconds(layer: nn.Module) -> float:
        # Two passes: the first brings back weights that the other layers have driven out of the processor's caches.
        one_pass(layer)
        started = time.perf_counter()
        one_pass(layer)
        return time.perf_counter() - started

    def side(layer: nn.Module) -> Callable[[int], float]:
        placed = layer.to(device, dtype)
        return lambda _: seconds(placed)

    return take_turns({name: side(layer) for name, layer in layers.items()}, range(rounds), warmup=WARMUP)


PASSES = {"forward": False, "forward and backward": True}
# Numerators and denominators of the tables' ratios.
RATIOS = (("experts", "dense"), ("whole", "experts"), ("published", "experts"), ("bare", "dense"))


def compare(options: Namespace, report: Report) -> None:
    """Compare experts with the other layers at all sizes."""
    rows, results = [], {}
    for tokens, width, inner, experts in SIZES:
        layers = layers_of(width, inner, experts)
        for name, backward in PASSES.items():
            rounds = max(10, options.repeats // (1 + tokens // 1024))
            times = measure(layers, tokens, width, rounds, options, backward)
            setting = f"{tokens}, {width}, {experts} of {inner}"
            results[f"{setting}, {name}"] = times
            dense = f"{1e3 * summarise(times['dense']).median:.2f}"
            rows.append((setting, name, dense, *(ratio(times[a], times[b]).with_quartiles() for a, b in RATIOS)))
            report.progress(f"{setting}, {name}: done")
    columns = ("tokens, width, experts", "passes", "dense, ms", *(f"{a} / {b}" for a, b in RATIOS))
    report.table(columns, rows, f"{options.device}, {options.threads} threads, {options.precision}")
    report.save({"seconds": results}, seeds=[SEED])


def compare_layouts(options: Namespace, report: Report) -> None:
    """Compare sorted rows with rows that are padded for batched products."""
    rows, results = [], {}
    for tokens, width, inner, experts in LAYOUT_SIZES:
        layers = {name: Layer(width, inner, experts, name == "padded") for name in ("sorted", "padded")}
        setting = f"{tokens}, {width}, {experts} of {inner}"
        for name, backward in PASSES.items():
            times = measure(layers, tokens, width, options.repeats, options, backward)
            results[f"{setting}, {name}"] = times
            medians = (f"{1e3 * summarise(values).median:.2f}" for values in times.values())
            rows.append((setting, name, *medians, ratio(times["padded"], times["sorted"]).with_quartiles()))
            report.progress(f"{setting}, {name}: done")
    columns = ("tokens, width, experts", "passes", "sorted, ms", "padded, ms", "padded / sorted")
    report.table(columns, rows, f"{options.device}, {options.threads} threads, {options.precision}")
    report.save({"seconds": results}, seeds=[SEED])


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=60, help="rounds, fewer at many tokens; default: %(default)s")
    parser.add_argument("--precision", default="float32", choices=["float32", "autocast", "bfloat16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--layouts", action="store_true", help="compare sorted and padded rows")


def run(options: Namespace, report: Report) -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    keep_freed_memory()
    (compare_layouts if options.layouts else compare)(options, report)
