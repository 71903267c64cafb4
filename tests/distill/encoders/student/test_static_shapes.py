"""Compilers, exporters and tracers run models with experts, and get the same results as without them."""

from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from distill.encoders.student import dispatch
from distill.encoders.student.dispatch import Tokens, dispatch_tokens, put, take, weighted
from search_spaces import Architecture
from supernet.build import build
from tests.distill.encoders.student.test_experts_in_model import KINDS, each_kind, make, with_empty_row
from tests.distill.encoders.student.test_routing import chosen, generator
from tests.tiny import BASE, batch, inputs, shaken

STEPS = (torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC)


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that has all following forward passes dispatch densely, or not."""
    return lambda wanted: monkeypatch.setattr(dispatch, "needs_static_shapes", lambda: wanted)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def expert_head() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(Architecture.uniform(BASE, head_experts=3), num_labels=3)
    return shaken(model).eval()


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 6)),
    st.integers(1, 5),
    st.none() | st.fractions(Fraction(1, 5), 2, max_denominator=9),
    st.booleans(),
    st.data(),
)
def test_the_same_pairs_are_dispatched(
    shape: tuple[int, int], count: int, capacity: Fraction | None, per_batch: bool, data: st.DataObject
) -> None:
    batch_size, length = shape
    shape = (1, batch_size * length) if per_batch else shape
    top_k, seed = data.draw(st.integers(1, count)), data.draw(st.integers(0, 99))
    lengths = data.draw(st.lists(st.integers(0, length), min_size=batch_size, max_size=batch_size))
    tokens = Tokens(None, torch.arange(length) < torch.tensor(lengths)[:, None])
    experts_NK = chosen(batch_size * length, top_k, count, seed)
    expected = dispatch_tokens(experts_NK, count, shape, tokens, capacity)
    tokens.dense = True
    sent = dispatch_tokens(experts_NK, count, shape, tokens, capacity)
    total = batch_size * length
    assert len(sent.pair_S) == count * total
    assert torch.equal(sent.slot_NK >= 0, expected.slot_NK >= 0)
    for token, choice in product(range(total), range(top_k)):
        slot = int(sent.slot_NK[token, choice])
        if slot >= 0:
            assert divmod(slot, total) == (int(experts_NK[token, choice]), token)
            assert sent.pair_S[slot] == token * top_k + choice
    x_ND = torch.randn(total, 3, dtype=torch.float64, generator=generator(seed))
    weight_P = torch.rand(total * top_k, dtype=torch.float64, generator=generator(seed))
    together, apart = (put(weighted(take(x_ND, way), weight_P[way.pair_S]), way) for way in (sent, expected))
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)


@each_kind
def test_equal_results_and_gradients(kind: str, dense: Any) -> None:
    """With padding, with a sentence that is only padding, and without a mask."""
    model, features = make(kind), with_empty_row(inputs(batch(5, 9)))
    unmasked = {name: tensor for name, tensor in features.items() if name != "attention_mask"}
    for given_features in (features, unmasked):
        results = []
        for wanted in (False, True):
            dense(wanted)
            outputs = model(**given_features, output_hidden_states=True)
            states = outputs.hidden_states[-1]
            outputs.logits.square().sum().backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            results.append([outputs.logits, states, *gradients])
            model.zero_grad()
        assert len(results[0]) == len(results[1])
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_an_expert_that_overflows_does_not_spoil_the_tokens_of_others(dense: Any) -> None:
    model, features = make("hash"), inputs(batch(5, 9))
    block, table = model.bert.encoder.layer[0].ffn[0], model.bert.encoder.layer[0].router.table
    table.fill_(0)
    with torch.no_grad():
        expected = model(**features).logits
        block.project.bias[1] = torch.inf
        dense(True)
        close(model(**features).logits, expected)


def test_a_head_of_experts(dense: Any) -> None:
    model, features = expert_head(), inputs(batch(5, 9))
    with torch.no_grad():
        expected = model(**features).logits
        dense(True)
        close(model(**features).logits, expected)


EXPORTED: list[Any] = ["head"]
EXPORTED += [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@torch.no_grad()
def check(model: Any, changed: Any) -> None:
    """Compare the logits on batches of other sizes than the exported one."""
    for rows, tokens in ((2, 9), (5, 14), (3, 2)):
        features = with_empty_row(inputs(batch(rows, tokens, seed=rows)))
        found = changed(features)
        close(found if isinstance(found, Tensor) else found.logits, model(**features).logits)


def made(kind: str) -> Any:
    return expert_head() if kind == "head" else make(kind)


@pytest.mark.parametrize("kind", EXPORTED)
def test_export(kind: str) -> None:
    model, features = made(kind), inputs(batch(4, 9))
    shapes = {name: dict(enumerate(STEPS)) for name in features}
    program = torch.export.export(model, (), features, dynamic_shapes=shapes).module()
    check(model, lambda given_features: program(**given_features))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "head"])
def test_compile(kind: str) -> None:
    """As one graph, without falling back to Python anywhere."""
    model = made(kind)
    torch.compiler.reset()
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="eager")
    check(model, lambda given_features: compiled(**given_features))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["everything", "head"])
def test_trace(kind: str) -> None:
    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = made(kind)

        def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
            logits: Tensor = self.model(input_ids, attention_mask, token_type_ids).logits
            return logits

    logits = Logits().eval()
    unpadded = inputs(batch(4, 9)) | {"attention_mask": torch.ones(4, 9, dtype=torch.long)}
    traced = torch.jit.trace(logits, tuple(unpadded.values()), check_trace=False)
    check(logits.model, lambda given_features: traced(*given_features.values()))
