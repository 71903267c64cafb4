"""The losses against loops over valid positions in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from distill.losses import attention_mse, balance, hidden_mse, relation_kl, soft_cross_entropy, symmetric_kl

HEADS, WIDTH = 3, 5
LENGTHS = [[4, 2, 1], [6, 6], [1], [3, 1], [5, 0, 7]]
SEEDS = st.integers(0, 10**6)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mask_of(lengths: list[int]) -> Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def attention_loop(a: np.ndarray, b: np.ndarray, lengths: list[int]) -> float:
    terms = [
        (float(a[row, head, i, j]) - float(b[row, head, i, j])) ** 2
        for row, length in enumerate(lengths)
        for head in range(HEADS)
        for i in range(length)
        for j in range(length)
    ]
    return sum(terms) / len(terms)


def hidden_loop(a: np.ndarray, b: np.ndarray, lengths: list[int]) -> float:
    terms = [
        (float(a[row, token, channel]) - float(b[row, token, channel])) ** 2
        for row, length in enumerate(lengths)
        for token in range(length)
        for channel in range(WIDTH)
    ]
    return sum(terms) / len(terms)


def cross_entropy_loop(student: np.ndarray, teacher: np.ndarray, temperature: float) -> float:
    total = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        s_sum = sum(math.exp(value / temperature) for value in s)
        t_sum = sum(math.exp(value / temperature) for value in t)
        for a, b in zip(s, t, strict=True):
            total -= math.exp(b / temperature) / t_sum * (a / temperature - math.log(s_sum))
    return total / len(student)


def log_softmax(values: list[float]) -> list[float]:
    top = max(values)
    return [value - top - math.log(sum(math.exp(v - top) for v in values)) for value in values]


def kl(log_p: list[float], log_q: list[float]) -> float:
    return sum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))


def relation_loop(student: Tensor, teacher: Tensor, lengths: list[int], heads: int) -> float:
    """Every distribution is made by itself, of a sentence without its padding."""
    terms = []
    for row, length in enumerate(lengths):
        for head in range(heads):
            sides = []
            for states in (student, teacher):
                size = states.shape[-1] // heads
                tokens = states[row, :length, head * size : (head + 1) * size].double().tolist()
                dot = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in tokens] for a in tokens]
                sides.append([log_softmax([value / math.sqrt(size) for value in values]) for values in dot])
            terms += [kl(log_t, log_s) for log_s, log_t in zip(*sides, strict=True)]
    return sum(terms) / max(len(terms), 1)


def balance_loop(probabilities: list[list[float]], chosen: list[int], experts: int) -> float:
    total = 0.0
    for expert in range(experts):
        share = sum(choice == expert for choice in chosen) / len(chosen)
        total += share * sum(row[expert] for row in probabilities) / len(chosen)
    return experts * total


@pytest.mark.parametrize("lengths", LENGTHS)
def test_attention(lengths: list[int]) -> None:
    shape = (len(lengths), HEADS, max(lengths), max(lengths))
    student, teacher = random(*shape), random(*shape, seed=1)
    expected = attention_loop(student.numpy(), teacher.numpy(), lengths)
    assert attention_mse(student, teacher, mask_of(lengths)).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_hidden(lengths: list[int]) -> None:
    shape = (len(lengths), max(lengths), WIDTH)
    student, teacher = random(*shape), random(*shape, seed=1)
    expected = hidden_loop(student.numpy(), teacher.numpy(), lengths)
    assert hidden_mse(student, teacher, mask_of(lengths)).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 4.0])
@pytest.mark.parametrize("shape", [(4, 3), (1, 2), (3, 1)])
def test_soft_labels(shape: tuple[int, int], temperature: float) -> None:
    student, teacher = random(*shape), random(*shape, seed=1)
    expected = cross_entropy_loop(student.double().numpy(), teacher.double().numpy(), temperature)
    actual = soft_cross_entropy(student, teacher, temperature).item()
    assert actual == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.floats(0.1, 10), SEEDS)
@example(1, 1, 1.0, 0)
def test_symmetric_kl(rows: int, classes: int, scale: float, seed: int) -> None:
    student, teacher = scale * random(rows, classes, seed=seed), scale * random(rows, classes, seed=seed + 1)
    logs = [[log_softmax(row) for row in side.double().tolist()] for side in (student, teacher)]
    expected = sum((kl(a, b) + kl(b, a)) / 2 for a, b in zip(*logs, strict=True)) / rows
    actual = symmetric_kl(student, teacher)
    assert actual.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert torch.equal(actual, symmetric_kl(teacher, student))


def test_symmetric_kl_of_certain_predictions() -> None:
    """Probabilities that are 0 in float32 on either side."""
    student = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    teacher = torch.tensor([[-1e4, 1e4], [300.0, -300.0]])
    loss = symmetric_kl(student, teacher)
    loss.backward()
    assert loss.item() == pytest.approx((2e4 + 600 / 4) / 2)
    assert torch.isfinite(student.grad).all()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=4),
    st.integers(1, 4),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    SEEDS,
)
@example([1], 1, (1, 1), 0)
@example([7, 0, 1], 3, (2, 3), 0)
def test_relations(lengths: list[int], heads: int, sizes: tuple[int, int], seed: int) -> None:
    shape = (len(lengths), max(*lengths, 1))
    student, teacher = (random(*shape, heads * size, seed=seed + side) for side, size in enumerate(sizes))
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    expected = relation_loop(student, teacher, lengths, heads)
    assert relation_kl(student, teacher, mask, heads).item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 8), SEEDS)
@example(1, 1, 0)
def test_balance(tokens: int, experts: int, seed: int) -> None:
    probabilities = random(tokens, experts, seed=seed).softmax(dim=-1)
    chosen = probabilities.argmax(dim=-1)
    expected = balance_loop(probabilities.double().tolist(), chosen.tolist(), experts)
    assert balance(probabilities, chosen).item() == pytest.approx(expected, rel=1e-6)


def test_balance_of_even_and_lopsided_routings() -> None:
    even = torch.full((8, 4), 0.25)
    assert balance(even, torch.arange(8) % 4) == 1
    assert balance(even, torch.zeros(8, dtype=torch.int64)) == 1
    assert balance(torch.eye(4)[[2] * 8], torch.full((8,), 2)) == 4


def test_the_balance_pushes_the_crowded_expert_down() -> None:
    probabilities = torch.full((4, 3), 1 / 3, requires_grad=True)
    balance(probabilities, torch.tensor([0, 0, 0, 2])).backward()
    # d/dp of E sum_e f_e P_e is E f_e / N.
    torch.testing.assert_close(probabilities.grad, torch.tensor([[9 / 16, 0, 3 / 16]]).expand(4, 3))


def test_an_empty_routing() -> None:
    probabilities = torch.zeros(0, 4, requires_grad=True)
    loss = balance(probabilities, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss == 0


@pytest.mark.parametrize("filling", [1.0, float("inf"), float("nan")])
def test_nothing_but_padding(filling: float) -> None:
    mask = torch.zeros(2, 3, dtype=torch.int64)
    states = random(2, 3, 6).requires_grad_()
    scores = random(2, HEADS, 3, 3).requires_grad_()
    teacher_states, teacher_scores = torch.full((2, 3, 6), filling), torch.full((2, HEADS, 3, 3), filling)
    for loss in (
        hidden_mse(states, teacher_states, mask),
        attention_mse(scores, teacher_scores, mask),
        relation_kl(states, teacher_states, mask, heads=2),
    ):
        assert loss == 0
        loss.backward()
    assert not states.grad.any()
    assert not scores.grad.any()


@pytest.mark.parametrize("filling", [0.0, 1e4, float("inf"), float("nan")])
def test_more_padding_changes_nothing(filling: float) -> None:
    lengths = [4, 2, 1]
    mask = mask_of(lengths)
    longer = F.pad(mask, (0, 3))
    hidden = random(3, 4, WIDTH), random(3, 4, WIDTH, seed=1)
    scores = random(3, HEADS, 4, 4), random(3, HEADS, 4, 4, seed=1)
    padded_hidden = [F.pad(hidden[side], (0, 0, 0, 3), value=(0.5, filling)[side]) for side in (0, 1)]
    padded_scores = [F.pad(scores[side], (0, 3, 0, 3), value=(0.5, filling)[side]) for side in (0, 1)]
    torch.testing.assert_close(hidden_mse(*padded_hidden, longer), hidden_mse(*hidden, mask))
    torch.testing.assert_close(attention_mse(*padded_scores, longer), attention_mse(*scores, mask))
    torch.testing.assert_close(relation_kl(*padded_hidden, longer, 1), relation_kl(*hidden, mask, 1))


@pytest.mark.parametrize("loss", [hidden_mse, lambda a, b, mask: relation_kl(a, b, mask, 1)])
def test_padding_gets_no_gradient(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    mask = mask_of([3, 2])
    student = random(2, 3, WIDTH).requires_grad_()
    loss(student, random(2, 3, WIDTH, seed=1), mask).backward()
    assert torch.equal(student.grad.abs().sum(dim=-1) > 0, mask.bool())


def test_zero_and_entropy_where_both_agree() -> None:
    hidden, logits = random(2, 3, 6), random(2, 4)
    assert hidden_mse(hidden, hidden, mask_of([3, 2])) == 0
    assert relation_kl(hidden, hidden, mask_of([3, 2]), 3) == 0
    assert symmetric_kl(logits, logits) == 0
    # A rotation of the channels leaves a relation of one head as it is; of several heads, each head's own.
    turned = hidden @ torch.linalg.qr(random(6, 6, seed=2)).Q
    torch.testing.assert_close(relation_kl(hidden, turned, mask_of([3, 2]), 1), torch.tensor(0.0))
    assert relation_kl(hidden, turned, mask_of([3, 2]), 3) > 1e-2
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
    torch.testing.assert_close(soft_cross_entropy(logits, logits), entropy)


def test_relations_are_in_full_precision_under_autocast() -> None:
    given = 3 * random(2, 5, 8), 3 * random(2, 5, 8, seed=1), mask_of([5, 2]), 2
    with torch.autocast("cpu", torch.bfloat16):
        inside = relation_kl(*given)
    assert inside == relation_kl(*given)


def test_half_precision_teachers() -> None:
    student, teacher = random(2, 3, WIDTH), random(2, 3, WIDTH, seed=1).half()
    loss = hidden_mse(student, teacher, mask_of([3, 2]))
    assert loss.dtype == torch.float32
    assert loss == hidden_mse(student, teacher.float(), mask_of([3, 2]))


def test_shapes_that_differ() -> None:
    mask = mask_of([4, 2])
    with pytest.raises(
        ValueError, match=r"equal head counts and lengths: student \(2, 3, 4, 4\), teacher \(2, 2, 4, 4\)"
    ):
        attention_mse(random(2, 3, 4, 4), random(2, 2, 4, 4), mask)
    with pytest.raises(ValueError, match=r"equal widths: student \(2, 4, 5\), teacher \(2, 4, 1\); project"):
        hidden_mse(random(2, 4, 5), random(2, 4, 1), mask)
    with pytest.raises(ValueError, match=r"student \(3, 2\), teacher \(1, 2\)"):
        soft_cross_entropy(random(3, 2), random(1, 2))
    with pytest.raises(ValueError, match=r"student \(3, 2\), teacher \(3, 4\)"):
        soft_cross_entropy(random(3, 2), random(3, 4))
    with pytest.raises(ValueError, match=r"student \(3, 2\), teacher \(1, 2\)"):
        symmetric_kl(random(3, 2), random(1, 2))
