"""A block computes its graph: against numpy in float64, and against an FFN written out by hand."""

import math
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, ModernBertConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.modernbert.modeling_modernbert import ModernBertMLP

from search_spaces import GELU, OPERATIONS, FFNGraph
from supernet.ffn import FFNBlock, combine
from tests.tiny import graphs, shaken

WIDTH = 10
GATED = [
    FFNGraph.parse(text)
    for text in (
        "project(mul(gelu(expand(x)),gate(x)))",
        "project(swish(add(gate(tanh(x)),mul(expand(max(x,tanh(x))),x))))",
        "max(x,project(max(relu(gate(x)),mul(gate(x),expand(sigmoid(x))))))",
    )
]


def make_block(graph: FFNGraph, inner: int, mismatch: str = "narrow", gelu: str = "tanh") -> FFNBlock:
    config = SimpleNamespace(
        hidden_size=WIDTH, layer_norm_eps=1e-3, hidden_dropout_prob=0.1, gelu=gelu, mismatch=mismatch
    )
    program = [[node.op, list(node.inputs)] for node in graph.nodes[1:]]
    block = FFNBlock(program, graph.widths(WIDTH, inner, mismatch), inner, config)
    return shaken(block, scale=0.5).double().eval()


@cache
def numerical(op: str) -> Callable[..., np.ndarray]:
    arguments = sympy.symbols("a b", real=True)[: OPERATIONS[op].arity]
    return sympy.lambdify(arguments, OPERATIONS[op].meaning(*arguments), "numpy")


def evaluate(graph: FFNGraph, block: FFNBlock, x: np.ndarray, mismatch: str, gelu: str) -> np.ndarray:
    """The graph's function from the definitions of the operations."""

    def apply(op: str, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
        if op == "x":
            return x
        if OPERATIONS[op].kind == "linear":
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
    config = LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=1, intermediate_size=17, hidden_act=name, mlp_bias=True
    )
    theirs = LlamaMLP(config).double()
    for own, linear in (("expand", "gate_proj"), ("gate", "up_proj"), ("project", "down_proj")):
        getattr(theirs, linear).load_state_dict(getattr(block, own).state_dict())
    actual = values_and_gradients(block.f, [block.expand, block.gate, block.project])
    expected = values_and_gradients(theirs, [theirs.gate_proj, theirs.up_proj, theirs.down_proj])
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_geglu_is_modernberts() -> None:
    """There both maps are one matrix, the activated half first."""
    block = make_block(FFNGraph.parse("project(mul(gelu(expand(x)),gate(x)))"), 17, gelu="erf")
    config = ModernBertConfig(
        hidden_size=WIDTH, intermediate_size=17, hidden_activation="gelu", mlp_bias=True, mlp_dropout=0.0
    )
    theirs = ModernBertMLP(config).double()
    with torch.no_grad():
        theirs.Wi.weight.copy_(torch.cat((block.expand.weight, block.gate.weight)))
        theirs.Wi.bias.copy_(torch.cat((block.expand.bias, block.gate.bias)))
    theirs.Wo.load_state_dict(block.project.state_dict())
    y, by_x, up, up_bias, gate, gate_bias, down, down_bias = values_and_gradients(
        block.f, [block.expand, block.gate, block.project]
    )
    actual = [y, by_x, torch.cat((up, gate)), torch.cat((up_bias, gate_bias)), down, down_bias]
    expected = values_and_gradients(theirs, [theirs.Wi, theirs.Wo])
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_glu_is_torchs() -> None:
    block = make_block(FFNGraph.parse("project(mul(gate(x),sigmoid(expand(x))))"), 6)
    x = torch.randn(3, WIDTH, dtype=torch.float64)
    expected = block.project(F.glu(torch.cat((block.gate(x), block.expand(x)), dim=-1)))
    torch.testing.assert_close(block.f(x), expected, rtol=1e-12, atol=1e-12)


def test_squared_relu_is_the_librarys() -> None:
    block = make_block(FFNGraph.parse("project(mul(relu(expand(x)),expand(x)))"), 6)
    x = torch.randn(3, WIDTH, dtype=torch.float64)
    expected = block.project(ACT2FN["relu2"](block.expand(x)))
    torch.testing.assert_close(block.f(x), expected, rtol=1e-12, atol=1e-12)


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
    x = torch.randn(
        3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True
    )
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
