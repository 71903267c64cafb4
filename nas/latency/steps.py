"""Measures how long each step of a block takes inside a model.

A step is named by its operation and the widths of its inputs in channels, such as "expand 96", "relu 96" and
"add 96 384". "norm" is the rest of a block, from its graph's output to its own. Layers of experts have the steps
"expand 96, 4 hash top 1" (all experts together), "route, 4 hash top 1" (choosing the experts) and
"send, 4 hash top 1" (dispatching the tokens to the experts and combining the results).
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
from transformers import PreTrainedModel

from distill.objectives.outputs import Batch
from search_spaces.architecture import DENSE, Base, Experts
from search_spaces.graph import FFNGraph
from search_spaces.operations import BINARY, LINEAR, UNARY
from supernet.build import expert_settings
from supernet.model.dispatch import Tokens, put, take, weighted
from supernet.model.expert_linear import is_batched
from supernet.model.ffn import FFNBlock, combine
from supernet.model.routing import TableRouter, router_class

STEP_ROUNDS = 30
# On a device that is too slow or too busy for all rounds, they end after MAX_SECONDS, but not before MIN_ROUNDS.
MAX_SECONDS = 30.0
MIN_ROUNDS = 5
GATED = FFNGraph.parse("project(mul(expand(x),gate(x)))")


def probed_graphs() -> list[FFNGraph]:
    """Graphs that together have every step, also those of operations that were added at run time."""
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
        # The `project` of experts counts as one of width `inner`, even if its input has another width.
        of_experts = node.op in LINEAR and experts != DENSE
        names.append(_of_experts(node.op, inner, experts) if of_experts else _name(node.op, *step_widths))
    return names


def kind(experts: Experts) -> str:
    """The settings of experts that make a difference to their latency, as text."""
    capacity = f" capacity {experts.capacity}" if experts.capacity is not None else ""
    return f"{experts.count} {experts.routing} top {experts.top_k}{capacity}"


def _of_experts(op: str, inner: int, experts: Experts) -> str:
    return f"{op} {inner}, {kind(experts)}"


def routes(experts: Experts) -> str:
    return f"route, {kind(experts)}"


def sends(experts: Experts) -> str:
    return f"send, {kind(experts)}"


def _name(op: str, *widths: int) -> str:
    """The name of a step in the latency table."""
    return " ".join([op, *map(str, sorted(set(widths)))])


@torch.inference_mode()
def step_times(
    host: PreTrainedModel, base: Base, widths: Sequence[int], experts: Sequence[Experts], batch: Batch
) -> dict[str, float]:
    """Measure every step at each of these inner widths, in seconds, by its name in `LatencyTable`.

    Args:
        host: the model in whose layers the steps are measured.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    steps = _steps(host, base, widths)
    probes: list[list[nn.Module]] = [
        [_Probe(graph, base, inner, steps, seconds) for inner in widths] for graph in probed_graphs()
    ]
    probes += [
        [_ExpertProbe(layer_experts, inner, host, batch, seconds) for inner in widths] for layer_experts in experts
    ]
    host.eval()
    layers = host.bert.encoder.layer
    rng = random.Random(0)
    for _ in bounded(STEP_ROUNDS):
        # An operation takes up to twice as long if no other layer uses it, because its code is not in the caches. The
        # members of a space are similar to its base graph, so all layers of a pass get the same graph.
        for alike in rng.sample(probes, len(probes)):
            order = rng.sample(alike, len(alike))
            for start in range(0, len(order), len(layers)):
                for layer, probe in zip(layers, islice(cycle(order), start, None), strict=False):
                    layer.ffn = nn.ModuleList([probe])
                host(**batch)
    return {name: lower_quartile(values) for name, values in seconds.items()}


def _steps(host: PreTrainedModel, base: Base, widths: Sequence[int]) -> dict[str, Callable[..., Tensor]]:
    """The function that computes each step, by the name of the step."""
    steps: dict[str, Callable[..., Tensor]] = {}
    for inner in widths:
        program = [(node.op, node.inputs) for node in GATED.nodes[1:]]
        block = FFNBlock(program, GATED.widths(base.width, inner), inner, host.config).to(host.device).eval()
        steps["norm"] = _only(block)
        for op in (*UNARY, *LINEAR):
            steps[_name(op, inner)] = _only(block, (op, (0,))).f
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
        seconds: dict[str, list[float]],
    ) -> None:
        super().__init__()
        self.program = [
            (name, steps[name], node.inputs)
            for name, node in zip(step_names(graph, base, inner), graph.nodes[1:], strict=True)
        ]
        self.norm = steps["norm"]
        self.seconds = seconds

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        values = [hidden_BTD]
        for name, step, inputs in self.program:
            values.append(self._time(name, step, *(values[number] for number in inputs)))
        return self._time("norm", self.norm, values[-1])

    def _time(self, name: str, step: Callable[..., Tensor], *values_BTN: Tensor) -> Tensor:
        return _timed(self.seconds, name, values_BTN[0].is_cuda, step, *values_BTN)


class _ExpertProbe(nn.Module):
    """A block of experts that measures the times of its router, of its linear maps (including a `gate`), and of
    dispatching and combining the tokens.
    """

    def __init__(
        self, experts: Experts, inner: int, host: PreTrainedModel, batch: Batch, seconds: dict[str, list[float]]
    ) -> None:
        super().__init__()
        width, settings = host.config.hidden_size, expert_settings(experts)
        program = [(node.op, node.inputs) for node in GATED.nodes[1:]]
        self.experts, self.inner, self.seconds = experts, inner, seconds
        self.block = FFNBlock(program, GATED.widths(width, inner), inner, host.config, settings).to(host.device).eval()
        for parameter in self.block.parameters():
            nn.init.normal_(parameter, std=host.config.initializer_range)
        router = self.block.router or router_class(settings)(settings, host.config, is_batched(width, inner))
        self.router = router.to(host.device)
        if isinstance(self.router, TableRouter):
            self.router.table = torch.randint_like(self.router.table, experts.count)
        self.tokens = Tokens(batch["input_ids"], batch["attention_mask"])

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        def timed(name: str, step: Callable[..., Any], *given: Any) -> Any:
            return _timed(self.seconds, name, hidden_BTD.is_cuda, step, *given)

        def sent() -> tuple[Tensor, Tensor]:
            x_SD = take(hidden_BTD.reshape(-1, hidden_BTD.shape[-1]), routing.dispatch)
            return x_SD, put(weighted(x_SD, routing.weight_S), routing.dispatch)

        routing = timed(routes(self.experts), self.router, hidden_BTD, self.tokens)
        x_SD, back_ND = timed(sends(self.experts), sent)
        expanded = timed(_of_experts("expand", self.inner, self.experts), self.block.expand, x_SD, routing.dispatch)
        gate = timed(_of_experts("gate", self.inner, self.experts), self.block.gate, x_SD, routing.dispatch)
        product = expanded * gate
        timed(_of_experts("project", self.inner, self.experts), self.block.project, product, routing.dispatch)
        return self.block.LayerNorm(hidden_BTD + back_ND.view(hidden_BTD.shape))


def _timed(seconds: dict[str, list[float]], name: str, cuda: bool, step: Callable[..., Any], *given: Any) -> Any:
    finish(cuda)
    begun = time.perf_counter()
    result = step(*given)
    finish(cuda)
    seconds[name].append(time.perf_counter() - begun)
    return result


def _only(block: FFNBlock, *steps: tuple[str, tuple[int, ...]]) -> FFNBlock:
    """A block that shares the weights of `block` but has only these steps."""
    alone = copy.copy(block)
    alone.steps = steps
    return alone


def lower_quartile(seconds: Sequence[float]) -> float:
    """The lower quartile."""
    return quantiles(seconds, n=4)[0]


def bounded(rounds: int) -> Iterator[int]:
    """The numbers of at most `rounds` rounds, fewer if they take too long."""
    begun = time.monotonic()
    for number in range(rounds):
        if number >= MIN_ROUNDS and time.monotonic() - begun > MAX_SECONDS:
            return
        yield number


def finish(cuda: bool) -> None:
    """Wait until the device has finished its work."""
    if cuda:
        torch.cuda.synchronize()
