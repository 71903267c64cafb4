"""The losses against loops over valid positions in float64."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from distill.losses import attention_mse, hidden_mse, soft_cross_entropy

HEADS, WIDTH = 3, 5
LENGTHS = [[4, 2, 1], [6, 6], [1], [3, 1]]


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


@pytest.mark.parametrize("lengths", LENGTHS)
def test_attention(lengths: list[int]) -> None:
    shape = (len(lengths), HEADS, max(lengths), max(lengths))
    student, teacher = random(*shape), random(*shape, seed=1)
    expected = attention_loop(student.numpy(), teacher.numpy(), lengths)
    assert attention_mse(student, teacher, mask_of(lengths)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_hidden(lengths: list[int]) -> None:
    shape = (len(lengths), max(lengths), WIDTH)
    student, teacher = random(*shape), random(*shape, seed=1)
    expected = hidden_loop(student.numpy(), teacher.numpy(), lengths)
    assert hidden_mse(student, teacher, mask_of(lengths)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 4.0])
@pytest.mark.parametrize("shape", [(4, 3), (1, 2), (3, 1)])
def test_soft_labels(shape: tuple[int, int], temperature: float) -> None:
    student, teacher = random(*shape), random(*shape, seed=1)
    expected = cross_entropy_loop(student.double().numpy(), teacher.double().numpy(), temperature)
    actual = soft_cross_entropy(student, teacher, temperature).item()
    assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("filling", [0.0, 1e4])
def test_more_padding_changes_nothing(filling: float) -> None:
    lengths = [4, 2, 1]
    mask = mask_of(lengths)
    longer = F.pad(mask, (0, 3))
    hidden = random(3, 4, WIDTH), random(3, 4, WIDTH, seed=1)
    scores = random(3, HEADS, 4, 4), random(3, HEADS, 4, 4, seed=1)
    padded_hidden = [F.pad(hidden[side], (0, 0, 0, 3), value=filling * (1 - side)) for side in (0, 1)]
    padded_scores = [F.pad(scores[side], (0, 3, 0, 3), value=filling * (1 - side)) for side in (0, 1)]
    torch.testing.assert_close(hidden_mse(*padded_hidden, longer), hidden_mse(*hidden, mask))
    torch.testing.assert_close(attention_mse(*padded_scores, longer), attention_mse(*scores, mask))


def test_padding_gets_no_gradient() -> None:
    mask = mask_of([3, 1])
    student = random(2, 3, WIDTH).requires_grad_()
    hidden_mse(student, random(2, 3, WIDTH, seed=1), mask).backward()
    assert torch.equal(student.grad.abs().sum(dim=-1) > 0, mask.bool())


def test_zero_and_entropy_where_both_agree() -> None:
    hidden, logits = random(2, 3, WIDTH), random(2, 4)
    assert hidden_mse(hidden, hidden, mask_of([3, 2])) == 0
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
    torch.testing.assert_close(soft_cross_entropy(logits, logits), entropy)


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
