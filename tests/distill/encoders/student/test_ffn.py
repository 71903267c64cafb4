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
from torch.func import functional_call
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

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
        hidden_size=WIDTH, layer_norm_eps=1e-3, hidden_dropout_prob=0.1, gelu=gelu, mismatch=mismatch, **ROUTED
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
        centred = summed - summed.mean(-1, keepdims=True)
        normal = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-3)
        normal = normal * block.LayerNorm.weight.detach().numpy() + block.LayerNorm.bias.detach().numpy()
        np.testing.assert_allclose(
            block(torch.from_numpy(x)).detach().numpy(), normal, rtol=1e-7, atol=1e-7, err_msg=str(graph)
        )


@pytest.mark.parametrize("form", ["tanh", "erf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_base_graph_is_the_usual_ffn(dtype: torch.dtype, form: str) -> None:
    block = make_block(GELU, 3 * WIDTH, gelu=form).to(dtype)
    up, down = nn.Linear(WIDTH, 3 * WIDTH, dtype=dtype), nn.Linear(3 * WIDTH, WIDTH, dtype=dtype)
    up.load_state_dict(block.expand.state_dict())
    down.load_state_dict(block.project.state_dict())
    x = torch.randn(4, 7, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(0))
    own, other = x.clone().requires_grad_(), x.clone().requires_grad_()

    actual = block.f(own)
    expected = down(F.gelu(up(other), approximate="tanh" if form == "tanh" else "none"))
    assert torch.equal(actual, expected)
    actual.square().sum().backward()
    expected.square().sum().backward()
    for mine, theirs in [(own, other), *zip(block.expand.parameters(), up.parameters(), strict=True)]:
        assert torch.equal(mine.grad, theirs.grad)
    for mine, theirs in zip(block.project.parameters(), down.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def values_and_gradients(f: Callable[[Tensor], Tensor], linears: list[nn.Linear]) -> list[Tensor]:
    """f(x), and the gradients of a function of it by x and by the parameters of the linear maps."""
    x = torch.randn(4, 7, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    y = f(x)
    parameters = [parameter for linear in linears for parameter in (linear.weight, linear.bias)]
    return [y, *torch.autograd.grad(y.square().sum(), [x, *parameters])]


@pytest.mark.parametrize(("op", "name"), [("swish", "silu"), ("gelu", "gelu_pytorch_tanh")])
def test_swiglu_and_geglu_are_the_librarys(op: str, name: str) -> None:
    """Llama's and, with the tanh form of gelu, Gemma's; the library calls the activated map the gate."""
    block = make_block(FFNGraph.parse(f"project(mul({op}(expand(x)),gate(x)))"), 17)
    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=1, intermediate_size=17, hidden_act=name, mlp_bias=True)
    theirs = LlamaMLP(config).double()
    for own, linear in (("expand", "gate_proj"), ("gate", "up_proj"), ("project", "down_proj")):
        getattr(theirs, linear).load_state_dict(getattr(block, own).state_dict())
    actual = values_and_gradients(block.f, [block.expand, block.gate, block.project])
    expected = values_and_gradients(theirs, [theirs.gate_proj, theirs.up_proj, theirs.down_proj])
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_only_gated_graphs_have_a_gate() -> None:
    assert {name for name, _ in make_block(GELU, 6).named_children()}.isdisjoint({"gate"})
    for graph in GATED:
        assert make_block(graph, 6).gate.weight.shape == (6, WIDTH)


@pytest.mark.parametrize("mismatch", ["narrow", "wide"])
@pytest.mark.parametrize(
    "formula", ["project(mul(gelu(expand(x)),x))", "max(project(swish(expand(x))),tanh(x))", str(GATED[1])]
)
def test_gradients_numerically(formula: str, mismatch: str) -> None:
    block = make_block(FFNGraph.parse(formula), 6, mismatch)
    x = torch.randn(3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(block, x)


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


def test_mixed_precision_computes_every_graph() -> None:
    x = torch.randn(2, 3, WIDTH)
    for graph in [*graphs(30), *GATED]:
        block = make_block(graph, 6, "wide").float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = block.f(x)
        reference = block.f(x)
        error = (low.float() - reference).norm() / reference.norm().clamp_min(1e-3)
        assert error < 0.1, graph


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
@pytest.mark.parametrize("routing", GATES)
def test_gradients_of_experts_numerically(routing: str, batched: bool) -> None:
    block = make_block(GATED[0], 3, experts=settings(2, routing, 1))
    block.router.batched = batched
    names, parameters = zip(*block.named_parameters(), strict=True)
    mask, ids = MASK[1:3, :3], IDS[1:3, :3]

    def function(hidden_BTD: Tensor, *given: Tensor) -> Tensor:
        return functional_call(block, dict(zip(names, given, strict=True)), (hidden_BTD, Tokens(ids, mask)))

    given = (states()[1:3, :3].requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(function, given, fast_mode=True)


def copies(dense: FFNBlock, graph: FFNGraph, inner: int, experts: dict[str, Any]) -> FFNBlock:
    """A block of experts that all are `dense`."""
    block = make_block(graph, inner, experts=experts)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if name != "router.weight":
                source = dict(dense.named_parameters())[name]
                parameter.copy_(source)
    return block.to(next(dense.parameters()).dtype)


@pytest.mark.parametrize("graph", [GELU, *GATED, *MIXING], ids=str)
def test_one_run_of_all_tokens_is_the_dense_block_exactly(graph: FFNGraph) -> None:
    """Bit for bit: with all tokens at one expert, in the sorted layout, the products are the dense block's own. (In
    float64, that is; in float32 it is another library that computes them.)
    """
    dense = make_block(graph, 17)
    experts = settings(3)
    layer_router = router(experts, batched=False, table=torch.ones(20))
    assert torch.equal(forward(copies(dense, graph, 17, experts), layer_router, states(), None), dense(states()))


@LAYOUTS
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("graph", [GELU, *GATED, *MIXING], ids=str)
def test_copies_are_the_dense_block(graph: FFNGraph, dtype: torch.dtype, tolerance: float, batched: bool) -> None:
    """Up to rounding: products of other numbers of rows add up in another order. A gate that lets tokens pass all
    experts has probabilities whose sum is 1; one without preferences gives each of K experts the weight 1 / K.
    """
    dense = make_block(graph, 17).to(dtype)
    expected = torch.where(MASK[..., None].bool(), dense(states(dtype)), dense.LayerNorm(states(dtype)))
    found = {}
    for top_k in (1, 2, 4):
        experts = settings(4, "hash", top_k)
        found[f"hash {top_k}"] = copies(dense, graph, 17, experts), router(experts, batched)
    for routing in GATES:
        found[f"{routing} 4"] = copies(dense, graph, 17, settings(4, routing, 4)), None
        for top_k in (1, 3):
            block = copies(dense, graph, 17, settings(4, routing, top_k))
            nn.init.zeros_(block.router.weight)
            found[f"{routing} {top_k}"] = block, None
    for name, (block, layer_router) in found.items():
        if block.router is not None:
            block.router.batched = batched
        actual = forward(block, layer_router, states(dtype))
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, msg=name)


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
