"""A block computes its graph: against numpy in float64, and against an FFN written out by hand; its experts, against
dense blocks token by token.
"""

import math
import random
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from torch import Tensor, nn

from distill.encoders.student.dispatch import Tokens
from distill.encoders.student.expert_linear import BATCHED, is_batched
from distill.encoders.student.ffn import FFNBlock, combine
from distill.encoders.student.routing import Router, Routing, TableRouter
from search_spaces import BINARY, GELU, FFNGraph
from search_spaces.formula import meaning
from search_spaces.operations import LINEAR
from search_spaces.routing import ROUTINGS
from tests.supernet.reference import by_token, dense_blocks
from tests.tiny import graphs, shaken

WIDTH = 10
GATES = [name for name, kind in ROUTINGS.items() if kind.learned]
# What only experts ask of the configuration.
ROUTED = {"vocab_size": 20, "router_jitter_noise": 0.0, "gate_scale": "relative", "capacity_per": "sentence"}
GATED = [
    FFNGraph.parse(text)
    for text in (
        "project(mul(gelu(expand(x)),gate(x)))",
        "project(swish(add(gate(tanh(x)),mul(expand(max(x,tanh(x))),x))))",
        "max(x,project(max(relu(gate(x)),mul(gate(x),expand(sigmoid(x))))))",
    )
]


def make_block(
    graph: FFNGraph, inner: int, mismatch: str = "narrow", gelu: str = "tanh", experts: dict[str, Any] | None = None
) -> FFNBlock:
    config = SimpleNamespace(
        model_type="nas_bert",
        hidden_size=WIDTH,
        layer_norm_eps=1e-3,
        hidden_dropout_prob=0.1,
        gelu=gelu,
        mismatch=mismatch,
        **ROUTED,
    )
    program = [[node.op, list(node.inputs)] for node in graph.nodes[1:]]
    block = FFNBlock(program, graph.widths(WIDTH, inner, mismatch), inner, config, experts)
    for parameter in block.parameters() if experts is not None else ():
        nn.init.zeros_(parameter)  # it has whatever was in the memory; the model initializes it
    return shaken(block, scale=0.5).double().eval()


@cache
def numerical(op: str) -> Callable[..., np.ndarray]:
    arguments = sympy.symbols("a b", real=True)[: 1 + (op in BINARY)]
    return sympy.lambdify(arguments, meaning(op, *arguments), "numpy")


def evaluate(graph: FFNGraph, block: FFNBlock, x: np.ndarray, mismatch: str, gelu: str) -> np.ndarray:
    """The graph's function from the definitions of the operations."""

    def apply(op: str, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
        if op == "x":
            return x
        if op in LINEAR:
            linear = getattr(block, op)
            return inputs[0] @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
        if op == "gelu" and gelu == "erf":
            return inputs[0] * (1 + np.vectorize(math.erf)(inputs[0] / math.sqrt(2))) / 2
        shared = min(value.shape[-1] for value in inputs)
        with np.errstate(over="ignore"):  # elu's exponential, where the other branch is taken
            result = numerical(op)(*(value[..., :shared] for value in inputs))
        longest = max(inputs, key=lambda value: value.shape[-1])
        return result if mismatch == "narrow" else np.concatenate([result, longest[..., shared:]], axis=-1)

    return graph.fold(apply)[-1]


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
@pytest.mark.parametrize("mismatch", ["narrow", "wide"])
@pytest.mark.parametrize("inner", [4, WIDTH, 17])
def test_computes_the_graph(inner: int, mismatch: str, gelu: str) -> None:
    x = np.random.default_rng(inner).normal(size=(2, 5, WIDTH))
    for graph in [*graphs(60, seed=inner), *GATED]:
        block = make_block(graph, inner, mismatch, gelu)
        expected = evaluate(graph, block, x, mismatch, gelu)
        actual = block.f(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9, err_msg=str(graph))

        summed = x + expected
        centered = summed - summed.mean(-1, keepdims=True)
        normal = centered / np.sqrt(centered.var(-1, keepdims=True) + 1e-3)
        normal = normal * block.LayerNorm.weight.detach().numpy() + block.LayerNorm.bias.detach().numpy()
        np.testing.assert_allclose(
            block(torch.from_numpy(x)).detach().numpy(), normal, rtol=1e-7, atol=1e-7, err_msg=str(graph)
        )


def test_combine() -> None:
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 1.0])
    for op, expected in {"add": [11.0, 3.0], "mul": [10.0, 2.0], "max": [10.0, 2.0]}.items():
        for pair in ((a, b), (b, a)):
            assert combine(op, *pair, "narrow").tolist() == expected
            assert combine(op, *pair, "wide").tolist() == [*expected, 3.0]


def test_dropout_acts_on_the_branch_only() -> None:
    block = make_block(GELU, WIDTH).train()
    block.dropout.p = 1.0
    x = torch.randn(3, WIDTH, dtype=torch.float64)
    assert torch.equal(block(x), block.LayerNorm(x))


MIXING = [
    FFNGraph.parse(text) for text in ("project(mul(gelu(expand(x)),x))", "max(project(swish(expand(x))),tanh(x))")
]
LAYOUTS = pytest.mark.parametrize("batched", [False, True], ids=["sorted", "batched"])
LENGTHS = (5, 3, 1, 0)
MASK = (torch.arange(5) < torch.tensor(LENGTHS)[:, None]).long()
IDS = torch.randint(1, 20, MASK.shape, generator=torch.Generator().manual_seed(5)) * MASK


def settings(count: int, routing: str = "hash", top_k: int = 1, capacity: str | None = None) -> dict[str, Any]:
    return {"count": count, "routing": routing, "top_k": top_k, "capacity": capacity}


def states(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*MASK.shape, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def router(experts: dict[str, Any], batched: bool, table: Tensor | None = None) -> Router:
    """Of a layer that routes by a hash."""
    layer_router = TableRouter(experts, SimpleNamespace(hidden_size=WIDTH, **ROUTED), batched)
    drawn = torch.randint(experts["count"], (20,), generator=torch.Generator().manual_seed(4))
    layer_router.table.copy_(drawn if table is None else table)
    return layer_router


def forward(block: FFNBlock, layer_router: Router | None, hidden_BTD: Tensor, mask: Tensor | None = MASK) -> Tensor:
    tokens = Tokens(IDS, mask)
    return block(hidden_BTD, tokens, None if layer_router is None else layer_router(hidden_BTD, tokens))


@LAYOUTS
@pytest.mark.parametrize("mismatch", ["narrow", "wide"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_experts_token_by_token(routing: str, mismatch: str, batched: bool) -> None:
    """Also: padding and what is beyond the capacity keeps the residual alone, in the order of the sentence."""
    rng = random.Random(f"{routing} {mismatch} {batched}")
    weight_BTD = torch.randn(*MASK.shape, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for graph in [*graphs(4, seed=rng.randrange(100)), *rng.sample(GATED, 2), *MIXING]:
        count = rng.choice((2, 3, 5))
        capacity = None if routing == "sentence_gate" else rng.choice((None, "1/2", "1", "5/4"))
        experts = settings(count, routing, rng.randint(1, count), capacity)
        inner = rng.choice((4, WIDTH, 17))
        block = make_block(graph, inner, mismatch, experts=experts)
        layer_router, own = None, states().requires_grad_()
        if routing not in GATES:
            layer_router = router(experts, batched)
            chooser = layer_router.table
        else:
            block.router.batched = batched
            chooser = block.router.weight.detach().clone().requires_grad_()
        actual = forward(block, layer_router, own)
        (actual.square() * weight_BTD).sum().backward()

        dense = dense_blocks(block, partial(make_block, graph, inner, mismatch), count)
        other = states().requires_grad_()
        expected = by_token(dense, experts, chooser, other, IDS, MASK)
        (expected.square() * weight_BTD).sum().backward()
        about = f"{graph} {experts} {inner}"
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9, msg=about)
        assert torch.equal(actual[~MASK.bool()], block.LayerNorm(own)[~MASK.bool()])
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-9, msg=about)
        for name, parameter in block.named_parameters():
            of_each = [dict(one.named_parameters()).get(name) for one in dense]
            if name == "router.weight":
                theirs = chooser.grad
            elif name.startswith("LayerNorm"):
                theirs = of_each[0].grad
            else:
                theirs = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in of_each])
            torch.testing.assert_close(parameter.grad, theirs, rtol=1e-9, atol=1e-9, msg=f"{name} {about}")


@LAYOUTS
@pytest.mark.parametrize("routing", ROUTINGS)
def test_experts_of_nothing(routing: str, batched: bool) -> None:
    """No sentences, or only padding: nothing to compute, and still a gradient."""
    experts = settings(3, routing, 2, None if routing == "sentence_gate" else "5/4")
    for rows in (0, 2):
        block = make_block(GATED[1], 6, experts=experts)
        if block.router is not None:
            block.router.batched = batched
        tokens = Tokens(IDS[:rows], torch.zeros_like(MASK[:rows]))
        hidden_BTD = states()[:rows].requires_grad_()
        routing_of: Routing | None = None if block.router is not None else router(experts, batched)(hidden_BTD, tokens)
        actual = block(hidden_BTD, tokens, routing_of)
        assert torch.equal(actual, block.LayerNorm(hidden_BTD))
        actual.square().sum().backward()
        for name, parameter in block.named_parameters():
            assert name.startswith("LayerNorm") or parameter.grad is None or not parameter.grad.any(), name


@LAYOUTS
def test_mixed_precision_computes_experts(batched: bool) -> None:
    for seed, graph in enumerate([*graphs(10), *GATED]):
        routing = list(ROUTINGS)[seed % 4]
        experts = settings(3, routing, 1 + seed % 2)
        block = make_block(graph, 6, "wide", experts=experts).float()
        layer_router = router(experts, batched) if routing not in GATES else None
        if block.router is not None:
            block.router.batched = batched
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = forward(block, layer_router, states(torch.float32))
        reference = forward(block, layer_router, states(torch.float32))
        error = (low.float() - reference).norm() / reference.norm()
        assert error < 0.05, graph
        low.float().square().sum().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in block.parameters())


def test_small_experts_are_computed_together() -> None:
    assert is_batched(BATCHED // 64, 64)
    assert not is_batched(BATCHED // 64, 65)
    assert make_block(GELU, 6, experts=settings(2, "token_gate")).router.batched
