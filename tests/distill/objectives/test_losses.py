"""The losses against loops over what counts in float64, and what padding may not change."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from distill.objectives.losses import (
    attention_kl,
    attention_mse,
    balance,
    contrastive,
    cosine_distance,
    hidden_mse,
    normalized_mse,
    pooled_mse,
    relation_kl,
    soft_cross_entropy,
    soft_kl,
    symmetric_kl,
)
from tests.distill.objectives import references

HEADS, WIDTH = 3, 5
SEEDS = st.integers(0, 10**6)
LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=4)
LOGITS = [soft_cross_entropy, soft_kl, symmetric_kl]
# Of states (B, T, D), with their references.
STATES = {
    hidden_mse: references.hidden,
    cosine_distance: references.cosine_distance,
    normalized_mse: references.normalized,
    pooled_mse: references.pooled,
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mask_of(lengths: list[int], tokens: int | None = None) -> Tensor:
    return (torch.arange(tokens or max(*lengths, 1)) < torch.tensor(lengths)[:, None]).long()


def exactly(value: float) -> object:
    return pytest.approx(value, rel=1e-6, abs=1e-6)


@settings(max_examples=30)
@given(LENGTHS, st.integers(1, 6), st.sampled_from([*STATES]), SEEDS)
@example([1], 1, cosine_distance, 0)
@example([0, 7, 1], 3, normalized_mse, 0)
def test_states(lengths: list[int], width: int, loss: Callable[..., Tensor], seed: int) -> None:
    mask = mask_of(lengths)
    student, teacher = (random(*mask.shape, width, seed=seed + side) for side in (0, 1))
    assert loss(student, teacher, mask).item() == exactly(STATES[loss](student.numpy(), teacher.numpy(), lengths))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (symmetric_kl, (2e4 + 600 / 4) / 2),
        (soft_kl, (2e4 + math.log(2)) / 2),
        (soft_cross_entropy, (2e4 + math.log(2)) / 2),
    ],
)
def test_certain_predictions(loss: Callable[..., Tensor], expected: float) -> None:
    """Probabilities that are 0 in float32 on either side."""
    student = torch.tensor([[1e4, -1e4], [0.0, 0.0]], requires_grad=True)
    teacher = torch.tensor([[-1e4, 1e4], [300.0, -300.0]])
    value = loss(student, teacher)
    value.backward()
    assert value.item() == pytest.approx(expected)
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_gradients_of_soft_labels(temperature: float) -> None:
    """T (q - p) / N, q and p the student's and the teacher's probabilities; the cross-entropy's without T^2."""
    student, teacher = (4 * random(5, 3)).requires_grad_(), 4 * random(5, 3, seed=1)
    q, p = ((side / temperature).softmax(dim=-1) for side in (student.detach(), teacher))
    soft_kl(student, teacher, temperature).backward()
    torch.testing.assert_close(student.grad, temperature * (q - p) / 5)
    student.grad = None
    soft_cross_entropy(student, teacher, temperature).backward()
    torch.testing.assert_close(student.grad, (q - p) / temperature / 5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_what_is_no_choice(temperature: float) -> None:
    """The lowest number, in the place of padding, changes neither loss nor gradient."""
    lowest = torch.finfo(torch.float32).min
    teacher = random(3, 4, seed=1)
    for loss in LOGITS:
        settings = () if loss is symmetric_kl else (temperature,)
        results = []
        for extra in (0, 2):
            student = random(3, 4).requires_grad_()
            value = loss(*(F.pad(side, (0, extra), value=lowest) for side in (student, teacher)), *settings)
            value.backward()
            results.append((value.detach(), student.grad))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("loss", LOGITS)
def test_no_rows(loss: Callable[..., Tensor]) -> None:
    student = torch.zeros(0, 4, requires_grad=True)
    value = loss(student, torch.zeros(0, 4))
    value.backward()
    assert value == 0


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(1, 8), SEEDS)
@example(1, 1, 0)
def test_balance(tokens: int, experts: int, seed: int) -> None:
    probabilities = random(tokens, experts, seed=seed).softmax(dim=-1)
    chosen = probabilities.argmax(dim=-1)
    expected = references.balance(probabilities.double().tolist(), chosen.tolist(), experts)
    assert balance(probabilities, chosen).item() == pytest.approx(expected, rel=1e-6)


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


PADDED = [
    *STATES,
    lambda a, b, mask: relation_kl(a, b, mask, 1),
    lambda a, b, mask: attention_kl((a, a), (b, b), mask, 1),
]


@pytest.mark.parametrize("filling", [1.0, float("inf"), float("nan")])
def test_nothing_but_padding(filling: float) -> None:
    mask = torch.zeros(2, 3, dtype=torch.int64)
    states = random(2, 3, 6).requires_grad_()
    scores = random(2, HEADS, 3, 3).requires_grad_()
    values = [loss(states, torch.full((2, 3, 6), filling), mask) for loss in PADDED]
    values.append(attention_mse(scores, torch.full((2, HEADS, 3, 3), filling), mask))
    for value in values:
        assert value == 0
        value.backward()
    assert not states.grad.any()
    assert not scores.grad.any()


@pytest.mark.parametrize("loss", PADDED)
def test_padding_gets_no_gradient(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    mask = mask_of([3, 2])
    student, teacher = random(2, 3, WIDTH).requires_grad_(), random(2, 3, WIDTH, seed=1)
    teacher[1, 2] = float("inf")
    loss(student, teacher, mask).backward()
    reached = student.grad.abs().sum(dim=-1) > 0
    if loss is normalized_mse:  # the first token's alone
        mask = torch.tensor([[1, 0, 0], [1, 0, 0]])
    assert torch.equal(reached, mask.bool())


def test_full_precision_under_autocast() -> None:
    vectors = [F.normalize(random(*shape), dim=-1) for shape in ((3, 8), (3, 8), (3, 5, 8))]
    states = 3 * random(2, 5, 8), 3 * random(2, 5, 8, seed=1), mask_of([5, 2]), 2
    for loss, inputs in ((relation_kl, states), (contrastive, (*vectors, 0.07))):
        with torch.autocast("cpu", torch.bfloat16):
            inside = loss(*inputs)
        assert inside == loss(*inputs)


@pytest.mark.parametrize("loss", PADDED)
def test_half_precision_teachers(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    student, teacher = random(2, 3, WIDTH), random(2, 3, WIDTH, seed=1).half()
    value = loss(student, teacher, mask_of([3, 2]))
    assert value.dtype == torch.float32
    assert value == loss(student, teacher.float(), mask_of([3, 2]))


def test_shapes_that_differ() -> None:
    mask = mask_of([4, 2])
    with pytest.raises(
        ValueError, match=r"equal head counts and lengths: student \(2, 3, 4, 4\), teacher \(2, 2, 4, 4\)"
    ):
        attention_mse(random(2, 3, 4, 4), random(2, 2, 4, 4), mask)
    for loss in STATES:
        with pytest.raises(ValueError, match=r"equal widths: student \(2, 4, 5\), teacher \(2, 4, 1\); project"):
            loss(random(2, 4, 5), random(2, 4, 1), mask)
    for loss in LOGITS:
        with pytest.raises(ValueError, match=r"student \(3, 2\), teacher \(1, 2\)"):
            loss(random(3, 2), random(1, 2))
        with pytest.raises(ValueError, match=r"student \(3, 2\), teacher \(3, 4\)"):
            loss(random(3, 2), random(3, 4))


def test_scores_far_below_zero_are_as_zero_in_the_released_code() -> None:
    """-100 and below, wherever they are; on the last of three keys there is padding."""
    student = torch.tensor([-99.5, -100.0, 3.0]).expand(1, 1, 3, 3)
    teacher = torch.tensor([-100.5, 2.0, -7.0]).expand(1, 1, 3, 3)
    mask = torch.tensor([[1, 1, 0]])
    assert attention_mse(student, teacher, mask, paper_compatible=True).item() == exactly((99.5**2 + 2**2) / 3)
    assert attention_mse(student, teacher, mask).item() == exactly((1 + 102**2) / 2)
