"""Ridge regression against a direct solution."""

import numpy as np
import pytest
import torch
from torch import Tensor

from supernet.compensation import ridge
from supernet.compensation.ridge import CompensationError, Linear, Ridge, affine_change


def data(rows: int = 200, inputs: int = 6, outputs: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Linear]:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-3, 2, inputs)
    features = torch.randn(rows, inputs, generator=generator) * scale + 1
    weight = torch.randn(outputs, inputs, generator=generator) / scale
    noise = 0.1 * torch.randn(rows, outputs, generator=generator)
    start = Linear(torch.randn(outputs, inputs, generator=generator) / scale, torch.zeros(outputs))
    return features, features @ weight.t() + 2 + noise, start


def every_fifth(rows: int) -> Tensor:
    return torch.arange(rows) % 5 == 4


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("strength", [1e-4, 0.1, 10.0])
def test_the_minimum_of_its_definition(strength: float, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a least-squares problem with one more row for each shrunk weight."""
    monkeypatch.setattr(ridge, "STRENGTHS", (strength,))
    features, target, start = data()
    weight = torch.rand(200, generator=torch.Generator().manual_seed(1)) if weighted else torch.ones(200)
    held = every_fifth(200)
    found = Ridge(features, held, weight if weighted else None).solve(target, start)
    x, y, w = (tensor[~held].double().numpy() for tensor in (features, target, weight))
    w_all = weight.double().numpy()
    mean = (x * w[:, None]).sum(0) / w.sum()
    everything = (features.double().numpy() - mean) * np.sqrt(w_all)[:, None]
    deviation = np.sqrt((everything**2).sum(0) / w_all.sum())
    for output in range(4):
        # Unknowns: the change of each weight, and the bias, which is not shrunk.
        rows = np.concatenate([x, np.ones((len(x), 1))], axis=1) * np.sqrt(w / w.sum())[:, None]
        initial = start.weight_DE[output].double().numpy()
        rest = (y[:, output] - x @ initial) * np.sqrt(w / w.sum())
        shrunk = np.concatenate([np.diag(deviation) * np.sqrt(strength), np.zeros((6, 1))], axis=1)
        solution, *_ = np.linalg.lstsq(np.concatenate([rows, shrunk]), np.concatenate([rest, np.zeros(6)]), rcond=None)
        expected = (initial + solution[:6]) * deviation
        np.testing.assert_allclose(found.weight_DE[output].double().numpy() * deviation, expected, rtol=2e-3, atol=2e-3)
        predicted = features.double().numpy() @ (initial + solution[:6]) + solution[6]
        np.testing.assert_allclose(found(features)[:, output].numpy(), predicted, rtol=2e-3, atol=5e-3)


def test_the_strength_is_chosen_on_held_out_rows() -> None:
    """With as many inputs as rows a weak ridge fits noise: the chosen one predicts new rows better."""
    features, target, start = data(60, 40, seed=2)
    generator = torch.Generator().manual_seed(5)
    noisy = target + 3 * torch.randn(target.shape, generator=generator)
    held = every_fifth(60)
    chosen = Ridge(features, held).solve(noisy, start)

    def held_error(linear: Linear) -> float:
        return float(((linear(features) - noisy)[held] ** 2).mean())

    alone = {}
    for strength in ridge.STRENGTHS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ridge, "STRENGTHS", (strength,))
            alone[strength] = held_error(Ridge(features, held).solve(noisy, start))
    assert held_error(chosen) == pytest.approx(min(alone.values()), rel=1e-4)
    assert min(alone.values()) < 0.9 * alone[ridge.STRENGTHS[0]]


def test_constant_inputs_keep_the_weights_of_the_start() -> None:
    features, target, start = data()
    features[:, 2] = 3.0
    found = Ridge(features, every_fifth(200)).solve(target, start)
    assert torch.equal(found.weight_DE[:, 2], start.weight_DE[:, 2])
    assert bool(torch.isfinite(found.weight_DE).all())
    assert float((found(features) - target).abs().mean()) < 1e3


def test_fewer_rows_than_inputs() -> None:
    features, target, start = data(10, 30)
    found = Ridge(features, every_fifth(10)).solve(target, start)
    assert bool(torch.isfinite(found.weight_DE).all()) and bool(torch.isfinite(found.bias_D).all())


def test_without_held_out_rows_the_ridge_is_cautious(monkeypatch: pytest.MonkeyPatch) -> None:
    features, target, start = data()
    nothing = torch.zeros(200, dtype=torch.bool)
    found = Ridge(features, nothing).solve(target, start)
    monkeypatch.setattr(ridge, "STRENGTHS", (ridge.CAUTIOUS,))
    torch.testing.assert_close(found.weight_DE, Ridge(features, nothing).solve(target, start).weight_DE)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_refused(value: float) -> None:
    features, target, start = data()
    held = every_fifth(200)
    broken = target.clone()
    broken[3, 1] = value
    with pytest.raises(CompensationError, match="targets"):
        Ridge(features, held).solve(broken, start)
    features[3, 1] = value
    with pytest.raises(CompensationError, match="activations"):
        Ridge(features, held)


def test_an_affine_change_goes_as_far_as_the_held_out_rows_say() -> None:
    """Every channel's own straight line through the fitted rows, approached by one share for all channels."""
    features, target, _ = data(40, 4, 4, seed=3)
    held = every_fifth(40)
    factor, shift = (tensor.numpy() for tensor in affine_change(features, target, held))
    x, y = features.double().numpy(), target.double().numpy()
    lines = np.array([np.polyfit(x[~held, d], y[~held, d], 1) for d in range(4)])
    share = (factor - 1) / (lines[:, 0] - 1)
    assert share == pytest.approx([share[0]] * 4, rel=1e-4)
    np.testing.assert_allclose(shift, share[0] * lines[:, 1], rtol=1e-4)

    def error(part: float) -> float:
        changed = x * (1 + part * (lines[:, 0] - 1)) + part * lines[:, 1]
        return float(((changed - y)[held] ** 2).sum())

    best = min(np.linspace(0, 1, 10_001), key=error)
    assert 0 < share[0] < 1
    assert share[0] == pytest.approx(best, abs=2e-4)


def test_an_affine_change_that_is_exact() -> None:
    features, _, _ = data(40)
    factor, shift = torch.linspace(-2, 3, 6), torch.linspace(5, -1, 6)
    for found, expected in zip(
        affine_change(features, features * factor + shift, every_fifth(40)), (factor, shift), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_an_affine_change_where_there_is_little_to_learn_from() -> None:
    features, target, _ = data(5, 4, 4)
    everything_fits = torch.zeros(5, dtype=torch.bool)
    factor, shift = affine_change(features, 3 * features + 4, everything_fits)
    # Half of the way.
    torch.testing.assert_close(factor, torch.full((4,), 2.0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(shift, torch.full((4,), 2.0), rtol=1e-3, atol=1e-3)
    # The fitted rows say the opposite of the held-out ones.
    held = torch.tensor([False, False, False, True, True])
    away = torch.where(held[:, None], features - 1, features + 1)
    unchanged = affine_change(features, away, held)
    assert torch.equal(unchanged[0], torch.ones(4)) and not unchanged[1].any()
    # One row, and a constant channel, say nothing about the factor.
    features[:, 2] = 7
    factor, shift = affine_change(features, 3 * features + 4, everything_fits)
    assert float(factor[2]) == 1 and float(shift[2]) == pytest.approx((3 * 7 + 4 - 7) / 2)
    one = torch.tensor([True, True, True, True, False])
    assert torch.equal(affine_change(features, target, one)[0], torch.ones(4))


@pytest.mark.parametrize(("place", "name"), [(0, "activations"), (1, "targets")])
def test_an_affine_change_of_what_is_not_finite(place: int, name: str) -> None:
    values = list(data(10, 4, 4)[:2])
    values[place][3, 1] = torch.inf
    with pytest.raises(CompensationError, match=f"the {name} are not finite"):
        affine_change(*values, every_fifth(10))
