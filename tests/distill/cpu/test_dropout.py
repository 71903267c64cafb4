import pytest
import torch
from torch import nn
from torch.nn import functional as F

from distill.cpu.dropout import LEVELS, dropout, quick_dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_rate_and_mean_are_right_in_each_of_the_four_lanes(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(0)
    count = 400_000
    lanes = dropout(torch.ones(count, dtype=dtype), p).view(-1, 4).float()
    kept = (lanes != 0).double().mean(dim=0)
    # Five standard errors.
    assert (kept - (1 - p)).abs().max() < 5 * (p * (1 - p) / (count / 4)) ** 0.5
    rounded = torch.finfo(dtype).eps + 1 / LEVELS / (1 - p)
    assert lanes[lanes != 0].unique().tolist() == [pytest.approx(1 / (1 - p), rel=rounded)]
    assert lanes.double().mean() == pytest.approx(1, abs=0.02)


def test_lanes_are_independent() -> None:
    torch.manual_seed(0)
    lanes = (dropout(torch.ones(400_000), 0.5).view(-1, 4) != 0).double()
    correlation = torch.corrcoef(lanes.T) - torch.eye(4)
    assert correlation.abs().max() < 5 / 100_000**0.5


def test_the_gradient_goes_where_the_value_went() -> None:
    x = torch.randn(7, 5, 3, requires_grad=True)
    y = dropout(x, 0.3)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, y)
    assert x.grad.unique().tolist() == [0.0, pytest.approx(1 / 0.7, rel=1e-4)]


def test_the_seed_decides_the_mask() -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return dropout(torch.ones(101), 0.5)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0,), (2, 0, 3), (5, 1, 3)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    y = dropout(torch.ones(shape), 0.5)
    assert y.shape == shape
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_what_is_not_contiguous_is_dropped_elementwise() -> None:
    x = torch.arange(1.0, 41.0).view(4, 10).T
    y = dropout(x, 0.5)
    assert torch.all((y == 0) | (y == 2 * x))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_none_and_all(p: float) -> None:
    x = torch.randn(3, 4)
    assert torch.equal(dropout(x, p), F.dropout(x, p))


def test_nothing_is_dropped_in_evaluation() -> None:
    x = torch.randn(3, 4)
    assert dropout(x, 0.5, training=False) is x


def test_modules_drop_by_their_own_chance_and_mode_and_only_meanwhile() -> None:
    model = nn.Sequential(nn.Dropout(0.25), nn.Sequential(nn.Dropout(0.5)))
    usual = dict(vars(model[0]))
    x = torch.ones(4000)
    with quick_dropout(model.modules()):
        assert "forward" in vars(model[0]) and "forward" in vars(model[1][0])
        torch.manual_seed(3)
        found = model(x)
        torch.manual_seed(3)
        assert torch.equal(found, dropout(dropout(x, 0.25), 0.5))
        model.eval()
        assert model(x) is x
        model.train()
        model[0].p = 0.0
        assert set(model(x).tolist()) == {0.0, 2.0}
        model[0].p = 0.25
    assert dict(vars(model[0])) == usual
    torch.manual_seed(3)
    given = F.dropout(x, 0.25)
    torch.manual_seed(3)
    assert torch.equal(model[0](x), given)
