"""Measures how long each step of a layer takes inside a model.

The step "attention 4" is everything that a layer with four heads does before its first block, and "rank 96" a
word embedding of this rank with its projection. The name of a step of a block consists of its operation and the widths
of its inputs in channels: "expand 96", "relu 96", "add 96 384". The step "norm" is a block's residual connection and
LayerNorm. A layer of experts has the steps "expand 96, 4 hash top 1" (all experts together), "route, 4 hash top 1" (the
router chooses the experts) and "send, 4 hash top 1" (the tokens are dispatched to the experts, and the results are
combined).
"""

import copy
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from distill.cpu.allocator import keep_freed_memory
from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers
from distill.encoders.student.dispatch import Tokens, put, take, weighted
from distill.encoders.student.expert_linear import is_batched
from distill.encoders.student.ffn import FFNBlock, combine
from distill.encoders.student.routing import TableRouter, router_class
from distill.objectives.outputs import Batch
from search_spaces.base import Base
from search_spaces.graph import FFNGraph
from search_spaces.layer import DENSE, Experts
from search_spaces.operations import BINARY, LINEAR, UNARY
from supernet.build import expert_settings

STEP_ROUNDS = 30
# A slow or busy device runs fewer rounds: measuring ends after MAX_SECONDS, but not before MIN_ROUNDS rounds.
MAX_SECONDS = 30.0
MIN_ROUNDS = 7
GATED = FFNGraph.parse("project(mul(expand(x),gate(x)))")


def probed_graphs() -> list[FFNGraph]:
    """Graphs that together contain every step of dense layers, including operations that were added at run time."""
    texts = (
        *(f"project({op}(expand(x)))" for op in UNARY),
        *(f"project({op}(expand(x),gate(x)))" for op in BINARY),
        *(f"project({op}(x,expand(x)))" for op in BINARY),
    )
    return [FFNGraph.parse(text) for text in texts]


def step_names(graph: FFNGraph, base: Base, inner: int, experts: Experts = DENSE) -> list[str]:
    """The names of the steps of a graph, one for each node after the input."""
    widths = graph.widths(base.width, inner, base.mismatch)
    names = []
    for node in graph.nodes[1:]:
        step_widths = [inner] if node.op in ("expand", "gate") else [widths[number] for number in node.inputs]
        # The name of the experts' `project` has the width `inner`, even if its input is wider or narrower.
        of_experts = node.op in LINEAR and experts != DENSE
        names.append(_of_experts(node.op, inner, experts) if of_experts else _name(node.op, *step_widths))
    return names


def experts_name(experts: Experts) -> str:
    """The settings of experts that affect their latency, as part of a step's name."""
    capacity = f" capacity {experts.capacity}" if experts.capacity is not None else ""
    return f"{experts.count} {experts.routing} top {experts.top_k}{capacity}"


def _of_experts(op: str, inner: int, experts: Experts) -> str:
    return f"{op} {inner}, {experts_name(experts)}"


def routing_step(experts: Experts) -> str:
    """The name of the step in which the router chooses the experts."""
    return f"route, {experts_name(experts)}"


def dispatch_step(experts: Experts) -> str:
    """The name of the step in which tokens are dispatched to the experts and the results are combined."""
    return f"send, {experts_name(experts)}"


def attention_step(heads: int) -> str:
    return f"attention {heads}"


def rank_step(rank: int) -> str:
    """The name of the step that is a word embedding of this rank, with its map to the width of the model."""
    return f"rank {rank}"


def _name(op: str, *widths: int) -> str:
    return " ".join([op, *map(str, sorted(set(widths)))])


@torch.inference_mode()
def step_times(
    host: PreTrainedModel,
    attentions: Mapping[int, Sequence[nn.Module]],
    words: Mapping[int, nn.Module],
    base: Base,
    widths: Sequence[int],
    experts: Sequence[Experts],
    batch: Batch,
) -> dict[str, float]:
    """Measure attention with each number of heads, every word embedding, and every step of a block at each of these
    inner widths, in seconds, by its name in `LatencyTable`. Afterwards the process keeps freed memory, see
    `nas.latency.whole.latencies`.

    Args:
        host: the model in whose layers the steps are measured.
        attentions: the attention modules of its layers, the lowest first, by their number of heads.
        words: word embeddings by their rank, the host's own first.
    """
    keep_freed_memory()
    seconds: dict[str, list[float]] = defaultdict(list)
    timed = partial(_timed, seconds, batch["input_ids"].is_cuda)
    steps = _steps(host, base, widths)
    probes: list[list[nn.Module]] = [
        [_Probe(graph, base, inner, steps, timed) for inner in widths] for graph in probed_graphs()
    ]
    probes += [
        [_ExpertProbe(layer_experts, inner, host, batch, timed) for inner in widths] for layer_experts in experts
    ]
    host.eval()
    layers, family = encoder_layers(host), family_of(host)
    hooks = _time_modules(layers, attentions, words, seconds, batch["input_ids"].is_cuda)
    heads, ranks = list(attentions), list(words)
    rng = random.Random(0)
    for turn in bounded(STEP_ROUNDS):
        # They stay for all passes of a round, so that the caches have their weights, as in use.
        for number, layer in enumerate(layers):
            layer.set_submodule(family.attention, attentions[heads[(turn + number) % len(heads)]][number])
        host.base_model.set_submodule(family.words, words[ranks[turn % len(ranks)]])
        # An operation takes up to twice as long if no other layer uses it, because its code is not in the CPU's cache.
        # Since the architectures of a space are similar to its base graph, all layers of a pass get the same graph.
        for probes_of_graph in rng.sample(probes, len(probes)):
            order = rng.sample(probes_of_graph, len(probes_of_graph))
            for start in range(0, len(order), len(layers)):
                for layer, probe in zip(layers, islice(cycle(order), start, None), strict=False):
                    layer.ffn = nn.ModuleList([probe])
                host(**batch)
    for hook in hooks:
        hook.remove()
    host.base_model.set_submodule(family.words, words[ranks[0]])
    return {name: lower_quartile(values) for name, values in seconds.items()}


def _time_modules(
    layers: Sequence[nn.Module],
    attentions: Mapping[int, Sequence[nn.Module]],
    words: Mapping[int, nn.Module],
    seconds: dict[str, list[float]],
    cuda: bool,
) -> list[RemovableHandle]:
    """Add hooks by which `seconds` gets the time from the beginning of a layer to the end of its attention, and that of
    a word embedding.
    """
    begun = 0.0

    def begin(*unused: object) -> None:
        nonlocal begun
        finish(cuda)
        begun = time.perf_counter()

    def end(name: str, *unused: object) -> None:
        finish(cuda)
        seconds[name].append(time.perf_counter() - begun)

    hooks = [module.register_forward_pre_hook(begin) for module in (*layers, *words.values())]
    hooks += [embedding.register_forward_hook(partial(end, rank_step(rank))) for rank, embedding in words.items()]
    for heads, of_layers in attentions.items():
        name = attention_step(heads)
        hooks += [attention.register_forward_hook(partial(end, name)) for attention in of_layers]
    return hooks


def _steps(host: PreTrainedModel, base: Base, widths: Sequence[int]) -> dict[str, Callable[..., Tensor]]:
    """The function that computes each step, by the name of the step."""
    steps: dict[str, Callable[..., Tensor]] = {}
    for inner in widths:
        program = [(node.op, node.inputs) for node in GATED.nodes[1:]]
        block = FFNBlock(program, GATED.widths(base.width, inner), inner, host.config).to(host.device).eval()
        steps["norm"] = _with_steps(block)
        for op in (*UNARY, *LINEAR):
            steps[_name(op, inner)] = _with_steps(block, (op, (0,))).f
        for op in BINARY:
            for other in (inner, base.width):
                steps[_name(op, inner, other)] = partial(combine, op, mismatch=base.mismatch)
    return steps


class _Probe(nn.Module):
    """A block that measures the time of each of its steps."""

    def __init__(
        self,
        graph: FFNGraph,
        base: Base,
        inner: int,
        steps: Mapping[str, Callable[..., Tensor]],
        timed: Callable[..., Any],
    ) -> None:
        super().__init__()
        self.program = [
            (name, steps[name], node.inputs)
            for name, node in zip(step_names(graph, base, inner), graph.nodes[1:], strict=True)
        ]
        self.norm = steps["norm"]
        self.timed = timed

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        values = [hidden_BTD]
        for name, step, inputs in self.program:
            values.append(self.timed(name, step, *(values[number] for number in inputs)))
        output_BTD: Tensor = self.timed("norm", self.norm, values[-1])
        return output_BTD


class _ExpertProbe(nn.Module):
    """A block of experts that measures the time of its router, of each of its linear maps (including a `gate`), and of
    dispatching the tokens and combining the results.
    """

    def __init__(
        self, experts: Experts, inner: int, host: PreTrainedModel, batch: Batch, timed: Callable[..., Any]
    ) -> None:
        super().__init__()
        width, settings = host.config.hidden_size, expert_settings(experts)
        program = [(node.op, node.inputs) for node in GATED.nodes[1:]]
        self.experts, self.inner, self.timed = experts, inner, timed
        self.block = FFNBlock(program, GATED.widths(width, inner), inner, host.config, settings).to(host.device).eval()
        for parameter in self.block.parameters():
            nn.init.normal_(parameter, std=host.config.initializer_range)
        router = self.block.router or router_class(settings)(settings, host.config, is_batched(width, inner))
        self.router = router.to(host.device)
        if isinstance(self.router, TableRouter):
            self.router.table = torch.randint_like(self.router.table, experts.count)
        self.tokens = Tokens(batch["input_ids"], batch["attention_mask"])

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        def dispatch_and_combine() -> tuple[Tensor, Tensor]:
            x_SD = take(hidden_BTD.reshape(-1, hidden_BTD.shape[-1]), routing.dispatch)
            return x_SD, put(weighted(x_SD, routing.weight_S), routing.dispatch)

        timed = self.timed
        routing = timed(routing_step(self.experts), self.router, hidden_BTD, self.tokens)
        x_SD, back_ND = timed(dispatch_step(self.experts), dispatch_and_combine)
        expanded = timed(_of_experts("expand", self.inner, self.experts), self.block.expand, x_SD, routing.dispatch)
        gate = timed(_of_experts("gate", self.inner, self.experts), self.block.gate, x_SD, routing.dispatch)
        product = expanded * gate
        timed(_of_experts("project", self.inner, self.experts), self.block.project, product, routing.dispatch)
        return self.block.LayerNorm(hidden_BTD + back_ND.view(hidden_BTD.shape))


def _timed(seconds: dict[str, list[float]], cuda: bool, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `step(*arguments)`, whose duration is added to `seconds[name]`."""
    finish(cuda)
    begun = time.perf_counter()
    result = step(*arguments)
    finish(cuda)
    seconds[name].append(time.perf_counter() - begun)
    return result


def _with_steps(block: FFNBlock, *steps: tuple[str, tuple[int, ...]]) -> FFNBlock:
    """A copy of `block` that has only these steps and shares its weights."""
    result = copy.copy(block)
    result.steps = steps
    return result


def lower_quartile(seconds: Sequence[float]) -> float:
    """The lower quartile, which interruptions by other processes affect less than the mean."""
    return quantiles(seconds, n=4)[0]


def bounded(rounds: int) -> Iterator[int]:
    """The numbers of the rounds: at most `rounds`, fewer if they take too long (MAX_SECONDS)."""
    begun = time.monotonic()
    for number in range(rounds):
        if number >= MIN_ROUNDS and time.monotonic() - begun > MAX_SECONDS:
            return
        yield number


def finish(cuda: bool) -> None:
    """Wait until the device has finished its work."""
    if cuda:
        torch.cuda.synchronize()
