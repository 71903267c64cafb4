"""Ridge regression against a direct solution."""

import numpy as np
import pytest
import torch
from torch import Tensor

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


def least_squares(
    x: np.ndarray, y: np.ndarray, start: np.ndarray, held: np.ndarray, weight: np.ndarray, bias: bool = True
) -> np.ndarray:
    """The map (E + 1, D), with its bias, if any, in the last row, of least squares with a row for each weight that is
    shrunk towards the start (E, D). Of six strengths the one with the least error on the held-out rows; 1 without any.
    """
    fit, width = weight * ~held, x.shape[1]
    mean = bias * fit @ x / fit.sum()
    deviation = np.sqrt(weight @ (x - mean) ** 2 / weight.sum())
    ones = np.column_stack((x, np.full(len(x), float(bias))))  # a column of zeros has the coefficient 0
    root = np.sqrt(fit / fit.sum())[:, None]
    maps = []
    for strength in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0) if held.any() else (1.0,):
        shrunk = np.diag(np.append(deviation * strength**0.5, 0))[:width]
        rest = np.concatenate((root * (y - x @ start), np.zeros((width, y.shape[1]))))
        change = np.linalg.lstsq(np.concatenate((root * ones, shrunk)), rest, rcond=None)[0]
        maps.append(change + np.concatenate((start, np.zeros((1, y.shape[1])))))
    return min(maps, key=lambda found: float(weight[held] @ ((y - ones @ found)[held] ** 2).sum(axis=1)))


# With these, the held-out rows choose each of the strengths in turn.
@pytest.mark.parametrize(("inputs", "noise"), [(40, 0.0), (40, 0.3), (40, 1.0), (40, 3.0), (30, 10.0), (40, 10.0)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_minimum_of_its_definition(inputs: int, noise: float, bias: bool, held_out: bool, weighted: bool) -> None:
    features, target, start = data(60, inputs)
    features -= 0 if bias else 0.999  # a mean that is large and not subtracted takes digits
    generator = torch.Generator().manual_seed(1)
    target = target + noise * torch.randn(target.shape, generator=generator)
    weight = torch.rand(60, generator=generator) if weighted else torch.ones(60)
    held = every_fifth(60) & held_out
    found = Ridge(features, held, weight if weighted else None, bias).solve(target, start)
    x, y, first, w = (tensor.double().numpy() for tensor in (features, target, start.weight_DE.t(), weight))
    expected = least_squares(x, y, first, held.numpy(), w, bias)
    np.testing.assert_allclose(found(features).numpy(), x @ expected[:-1] + expected[-1], rtol=0, atol=3e-3)


def test_constant_inputs_keep_the_weights_of_the_start() -> None:
    features, target, start = data()
    features[:, 2] = 0.1  # whose mean in float32 is not exactly that
    found = Ridge(features, every_fifth(200)).solve(target, start)
    assert torch.equal(found.weight_DE[:, 2], start.weight_DE[:, 2])
    assert bool(torch.isfinite(found.weight_DE).all())
    assert float((found(features) - target).abs().mean()) < 1e3


def test_fewer_rows_than_inputs() -> None:
    features, target, start = data(10, 30)
    found = Ridge(features, every_fifth(10)).solve(target, start)
    assert bool(torch.isfinite(found.weight_DE).all()) and bool(torch.isfinite(found.bias_D).all())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_refused(value: float, bias: bool) -> None:
    features, target, start = data()
    held = every_fifth(200)
    broken = target.clone()
    broken[3, 1] = value
    with pytest.raises(CompensationError, match="targets"):
        Ridge(features, held, with_bias=bias).solve(broken, start)
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
    # They go on where the fitted rows stop: the whole way, and no further.
    further = torch.where(held[:, None], features + 3, features + 1)
    factor, shift = affine_change(features, further, held)
    torch.testing.assert_close(factor * features + shift, features + 1, rtol=1e-4, atol=1e-4)
    # One row, a constant channel, and what is right already, say nothing about the factor.
    features[:, 2] = 7
    factor, shift = affine_change(features, 3 * features + 4, everything_fits)
    assert float(factor[2]) == 1 and float(shift[2]) == pytest.approx((3 * 7 + 4 - 7) / 2)
    one = torch.tensor([True, True, True, True, False])
    assert all(torch.equal(affine_change(features, y, one)[0], torch.ones(4)) for y in (target, features))


@pytest.mark.parametrize(("place", "name"), [(0, "activations"), (1, "targets")])
def test_an_affine_change_of_what_is_not_finite(place: int, name: str) -> None:
    values = list(data(10, 4, 4)[:2])
    values[place][3, 1] = torch.inf
    with pytest.raises(CompensationError, match=f"the {name} are not finite"):
        affine_change(*values, every_fifth(10))
