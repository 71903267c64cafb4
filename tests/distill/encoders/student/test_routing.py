"""Tokens to experts and back: against queues of plain Python, and one linear map after the other."""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from distill.encoders.student.dispatch import Dispatch, Tokens, dispatch_tokens, put, take
from distill.encoders.student.expert_linear import ExpertLinear, grouped_linear
from distill.encoders.student.routing import Router, Routing, router_class

WIDTH = 6
LAYOUTS = pytest.mark.parametrize("batched", [False, True], ids=["sorted", "batched"])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chosen(tokens: int, top_k: int, count: int, seed: int) -> Tensor:
    """Different experts for each token, (N, K)."""
    return torch.rand(tokens, count, generator=generator(seed)).argsort(dim=-1)[:, :top_k]


def queues(experts_NK: Tensor, count: int, mask_BT: Tensor, capacity: Fraction | None) -> list[list[tuple[int, int]]]:
    """For every expert the tokens it takes, and which of its choices it is to them, first come, first served."""
    taken: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    top_k, length = experts_NK.shape[1], mask_BT.shape[1]
    for sentence, mask_T in enumerate(mask_BT.tolist()):
        most = math.inf if capacity is None else math.ceil(capacity * top_k * sum(mask_T) / count)
        places = [most] * count
        for place in range(length):
            token = sentence * length + place
            for choice, expert in enumerate(experts_NK[token].tolist()):
                if mask_T[place] and places[expert] > 0:
                    places[expert] -= 1
                    taken[expert].append((token, choice))
    return taken


@given(
    st.tuples(st.integers(0, 3), st.integers(1, 6)),
    st.integers(1, 5),
    st.none() | st.fractions(Fraction(1, 5), 2, max_denominator=9),
    st.booleans(),
    st.data(),
)
def test_dispatch(
    shape: tuple[int, int], count: int, capacity: Fraction | None, batched: bool, data: st.DataObject
) -> None:
    batch, length = shape
    top_k, seed = data.draw(st.integers(1, count)), data.draw(st.integers(0, 99))
    lengths = data.draw(st.lists(st.integers(0, length), min_size=batch, max_size=batch))
    mask_BT = torch.arange(length) < torch.tensor(lengths, dtype=torch.long)[:, None]
    experts_NK = chosen(batch * length, top_k, count, seed)
    expected = queues(experts_NK, count, mask_BT, capacity)

    sent = dispatch_tokens(experts_NK, count, shape, Tokens(None, mask_BT), capacity, batched)
    assert sent.counts == tuple(map(len, expected))
    most = max(sent.counts)
    firsts = [most * expert if batched else sum(sent.counts[:expert]) for expert in range(count)]
    slots = {pair: firsts[expert] + place for expert, own in enumerate(expected) for place, pair in enumerate(own)}
    assert len(sent.pair_S) == (most * count if batched else len(slots))
    for token, choice in product(range(batch * length), range(top_k)):
        assert sent.slot_NK[token, choice] == slots.get((token, choice), -1)
    for (token, choice), slot in slots.items():
        assert sent.pair_S[slot] == token * top_k + choice
        assert sent.token_S[slot] == token
    if batched:
        assert sent.real_S is not None
        assert sent.real_S.nonzero().flatten().tolist() == sorted(slots.values())
    else:
        assert sent.real_S is None
        assert sent.runs == tuple(zip(firsts, [*firsts[1:], len(slots)], strict=True))
    missing = torch.zeros_like(sent.slot_NK, dtype=torch.bool) if sent.missing_NK is None else sent.missing_NK
    assert torch.equal(missing, sent.slot_NK < 0)


def test_what_counts_as_a_token() -> None:
    ids, mask = torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert Tokens(ids, mask).valid_BT.tolist() == mask.bool().tolist()
    for everything in (None, torch.ones(2, 3), torch.zeros(2, 1, 3, 3)):
        assert Tokens(ids, everything).valid_BT is None


def examples(batched: bool) -> Iterator[tuple[int, int, Dispatch]]:
    """Tokens, experts and ways: all sent, padding, overflow, experts without tokens, no tokens at all."""
    masks = [torch.ones(2, 4), torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]), torch.zeros(2, 4)]
    for seed, (mask, top_k, capacity) in enumerate(product(masks, (1, 2), (None, Fraction(1, 2)))):
        experts_NK = chosen(8, top_k, 3, seed)
        yield 8, 3, dispatch_tokens(experts_NK, 3, (2, 4), Tokens(None, mask), capacity, batched)
    yield 8, 5, dispatch_tokens(torch.tensor([[4, 1]] * 8), 5, (2, 4), Tokens(None, None), None, batched)
    yield 0, 3, dispatch_tokens(chosen(0, 1, 3, 0), 3, (0, 4), Tokens(None, torch.ones(0, 4)), Fraction(1), batched)


def real(sent: Dispatch) -> Tensor:
    return torch.ones(len(sent.pair_S), dtype=torch.bool) if sent.real_S is None else sent.real_S


@LAYOUTS
def test_there_and_back(batched: bool) -> None:
    """Every token comes back once for each slot it has; each way is the transpose of the other."""
    for tokens, _, sent in examples(batched):
        x_ND = torch.randn(tokens, WIDTH, dtype=torch.float64, generator=generator(0), requires_grad=True)
        y_SD = torch.randn(len(sent.pair_S), WIDTH, dtype=torch.float64, generator=generator(1)) * real(sent)[:, None]
        y_SD.requires_grad_()
        there, back = take(x_ND, sent), put(y_SD, sent)
        assert torch.equal(there[real(sent)], x_ND[sent.token_S[real(sent)]])
        times = (sent.slot_NK >= 0).sum(dim=1, keepdim=True)
        torch.testing.assert_close(put(there, sent), times * x_ND, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close((there * y_SD).sum(), (x_ND * back).sum(), rtol=1e-12, atol=1e-12)
        (grad_ND,) = torch.autograd.grad(there, x_ND, y_SD.detach())
        assert torch.equal(grad_ND, put(y_SD, sent))
        (grad_SD,) = torch.autograd.grad(back, y_SD, x_ND.detach())
        assert torch.equal(grad_SD, take(x_ND, sent) * real(sent)[:, None])


def by_expert(x_SI: Tensor, weight_EOI: Tensor, bias_EO: Tensor, sent: Dispatch) -> Tensor:
    """One row after the other."""
    size = max(sent.counts)
    owner = [e for e, n in enumerate(sent.counts) for _ in range(n if sent.real_S is None else size)]
    rows = [F.linear(x_SI[slot], weight_EOI[e], bias_EO[e]) for slot, e in enumerate(owner)]
    return torch.stack(rows) if rows else F.linear(x_SI, weight_EOI[0], bias_EO[0])


def drawn(module: nn.Module, seed: int = 3) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=generator(seed))
    return module


@LAYOUTS
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 5), (16, 4)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_grouped_linear(dtype: torch.dtype, tolerance: float, inputs: int, outputs: int, batched: bool) -> None:
    """In float32 this is another library's product than in float64, with the same result."""
    for _, count, sent in examples(batched):
        shapes = [(len(sent.pair_S), inputs), (count, outputs, inputs), (count, outputs)]
        given = [torch.randn(shape, generator=generator(seed)).to(dtype) for seed, shape in enumerate(shapes)]
        wanted = torch.randn(len(sent.pair_S), outputs, generator=generator(9)).to(dtype)
        every = [tensor.clone().requires_grad_() for tensor in given]
        reference = by_expert(*every, sent)
        expected = torch.autograd.grad((reference * wanted).sum(), every, materialize_grads=True)
        for needed in ((True, True, True), (True, False, False), (False, True, False), (False, False, True)):
            own = [tensor.clone().requires_grad_(needs) for tensor, needs in zip(given, needed, strict=True)]
            decision = grouped_linear(*own, sent)
            torch.testing.assert_close(decision, reference, rtol=tolerance, atol=tolerance)
            learned = [tensor for tensor in own if tensor.requires_grad]
            gradients = iter(torch.autograd.grad((decision * wanted).sum(), learned))
            for needs, gradient in zip(needed, expected, strict=True):
                if needs:
                    torch.testing.assert_close(next(gradients), gradient, rtol=tolerance, atol=tolerance)


@LAYOUTS
def test_a_gradient_that_is_one_number_repeated(batched: bool) -> None:
    """What `sum` passes on has no memory of its own for each row."""
    for tokens, count, sent in examples(batched):
        layer = drawn(ExpertLinear(count, 4, 8))
        x_ND = torch.randn(tokens, 4, requires_grad=True)
        put(layer(take(x_ND, sent), sent), sent).sum().backward()
        slots = torch.tensor(sent.counts, dtype=torch.float32)
        torch.testing.assert_close(layer.bias.grad, slots[:, None].expand(-1, 8))
        assert torch.isfinite(x_ND.grad).all()


def router(
    routing: str,
    count: int = 4,
    top_k: int = 1,
    jitter: float = 0.0,
    scale: str = "relative",
    per: str = "sentence",
    **options: object,
) -> Router:
    genes = {"count": count, "routing": routing, "top_k": top_k, "capacity": options.pop("capacity", None)}
    config = SimpleNamespace(
        vocab_size=20, hidden_size=WIDTH, router_jitter_noise=jitter, gate_scale=scale, capacity_per=per
    )
    module = router_class(genes)(genes, config, **options)
    for table in module.buffers():
        table.copy_(torch.randint(count, (20,), generator=generator(3)))
    return drawn(module).eval()


MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
IDS = torch.randint(20, MASK.shape, generator=generator(7))


def decide(module: Router, mask: Tensor | None = MASK, seed: int = 0, dtype: torch.dtype = torch.float64) -> Routing:
    hidden_BTD = torch.randn(*MASK.shape, WIDTH, generator=generator(seed), dtype=torch.float64).to(dtype)
    return module.to(dtype)(hidden_BTD, Tokens(IDS, mask))


@pytest.mark.parametrize("top_k", [1, 3, 4])
@pytest.mark.parametrize("mask", [MASK, None])
def test_a_hash_goes_by_its_table(mask: Tensor | None, top_k: int) -> None:
    """Further choices are the next experts by number, so all are different; they share alike."""
    module = router("hash", top_k=top_k)
    valid = torch.ones_like(IDS, dtype=torch.bool) if mask is None else mask.bool()
    decision = decide(module, mask)
    expected = [[(int(module.table[number]) + step) % 4 for step in range(top_k)] for number in IDS[valid].tolist()]
    assert decision.experts.tolist() == expected
    assert decision.probabilities is None
    if top_k == 1:
        assert decision.weight_S is None
    else:
        assert torch.equal(decision.weight_S, torch.full((int(valid.sum()) * top_k,), 1 / top_k, dtype=torch.float64))
    flat = torch.tensor(expected).flatten()
    assert decision.dispatch.counts == tuple(torch.bincount(flat, minlength=4).tolist())


@LAYOUTS
@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("mask", [MASK, None])
@pytest.mark.parametrize("routing", ["token_gate", "sentence_gate"])
def test_a_gate_is_a_softmax(routing: str, mask: Tensor | None, top_k: int, batched: bool) -> None:
    module = router(routing, top_k=top_k, batched=batched).double()
    hidden_BTD = torch.randn(*MASK.shape, WIDTH, generator=generator(0), dtype=torch.float64)
    decision = decide(module, mask)
    probabilities, best, weights = [], [], {}
    for sentence, states_TD in enumerate(hidden_BTD):
        valid = [True] * 5 if mask is None else mask[sentence].bool().tolist()
        if routing == "sentence_gate" and any(valid):
            gate_inputs = {0: states_TD[valid].mean(dim=0)}
        else:
            gate_inputs = {place: states_TD[place] for place in range(5) if routing == "token_gate" and valid[place]}
        for place, state_D in gate_inputs.items():
            e_E = (module.weight @ state_D).exp()
            probabilities.append(e_E / e_E.sum())
            best.append(e_E.argsort(descending=True)[:top_k].tolist())
            for token in range(5) if routing == "sentence_gate" else (place,):
                for choice, expert in enumerate(best[-1]):
                    weights[sentence * 5 + token, choice] = probabilities[-1][expert] * 4 / top_k
    torch.testing.assert_close(decision.probabilities, torch.stack(probabilities), rtol=1e-12, atol=1e-12)
    assert decision.experts.tolist() == best
    sent = decision.dispatch
    assert sum(sent.counts) == top_k * (20 if mask is None else 9)
    for token, choice in (sent.slot_NK >= 0).nonzero().tolist():
        weight = decision.weight_S[sent.slot_NK[token, choice]]
        torch.testing.assert_close(weight, weights[token, choice], rtol=1e-12, atol=1e-12)


@LAYOUTS
@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("routing", ["token_gate", "sentence_gate"])
def test_the_scale_of_a_gate(routing: str, top_k: int, batched: bool) -> None:
    """The plain probability, or to the bit the same times E / K; nothing else changes."""
    relative, plain = (
        decide(router(routing, top_k=top_k, batched=batched, scale=scale), dtype=torch.float32)
        for scale in ("relative", "probability")
    )
    assert torch.equal(plain.probabilities, relative.probabilities) and torch.equal(plain.experts, relative.experts)
    assert torch.equal(plain.dispatch.slot_NK, relative.dispatch.slot_NK)
    assert torch.equal(relative.weight_S, plain.weight_S * (4 / top_k))


@pytest.mark.parametrize("capacity", [Fraction(1, 3), Fraction(5, 4)])
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("routing", ["hash", "token_gate"])
def test_capacity_per_batch(routing: str, top_k: int, capacity: Fraction) -> None:
    """Switch's: each expert takes the first ceil(capacity * K * N / E) of all N tokens that are not padding."""
    sent = decide(router(routing, top_k=top_k, per="batch", capacity=str(capacity))).dispatch
    everything = decide(router(routing, top_k=top_k)).dispatch
    limit = math.ceil(capacity * top_k * int(MASK.sum()) / 4)
    firsts = [everything.pair_S[first:end][:limit] for first, end in everything.runs]
    assert torch.equal(sent.pair_S, torch.cat(firsts))
    assert (max(everything.counts) > limit) or capacity > 1


def test_values_that_a_configuration_cannot_have() -> None:
    with pytest.raises(ValueError, match=r"^config.capacity_per is 'corpus'; known are sentence, batch$"):
        router("hash", per="corpus")
    with pytest.raises(ValueError, match=r"^config.gate_scale is 'plain'; known are relative, probability$"):
        router("token_gate", scale="plain")


@pytest.mark.parametrize("routing", ["token_gate", "sentence_gate"])
def test_the_choice_does_not_hang_on_mixed_precision(routing: str) -> None:
    module = router(routing)
    exact = decide(module, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = decide(module, dtype=torch.float32)
    assert torch.equal(mixed.probabilities, exact.probabilities)
    assert torch.equal(mixed.experts, exact.experts)
    assert decide(module, dtype=torch.bfloat16).probabilities.dtype == torch.float32


def test_jitter_multiplies_the_gates_input_in_training_alone() -> None:
    """Switch's noise: with one channel that is 1, and weights 1 and 0, it is the logarithm of the odds."""
    module = router("token_gate", count=2, jitter=0.2)
    module.weight = nn.Parameter(torch.tensor([[1.0], [0.0]]))

    @torch.no_grad()
    def noise(training: bool) -> Tensor:
        return module.train(training)(torch.ones(40, 50, 1), Tokens(None, None)).probabilities.logit()[:, 0]

    torch.manual_seed(0)
    noisy = noise(training=True)
    assert 0.8 <= float(noisy.min()) < 0.805
    assert 1.195 < float(noisy.max()) <= 1.2001
    assert abs(float(noisy.mean()) - 1) < 0.02
    torch.testing.assert_close(noise(training=False), torch.ones(2000))
    module.jitter = 0.0
    torch.testing.assert_close(noise(training=True), torch.ones(2000))
