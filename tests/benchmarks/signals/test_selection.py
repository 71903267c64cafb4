"""Backward elimination and swaps against an exhaustive search."""

import json
from itertools import combinations
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.signals.selection import Regression, backward_elimination, swapped
from supernet.order.moments import BlockMoments
from supernet.order.reconstruction import forward_selection
from tests.nas.tiny_study import TinyStudy

INNER, WIDTH = 9, 5


def moments_of(seed: int) -> tuple[BlockMoments, torch.Tensor]:
    """The moments of random correlated channels, and the weight of `project`."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(INNER, INNER, generator=generator, dtype=torch.float64)
    gradients = torch.randn(20, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(WIDTH, INNER, generator=generator)
    mean = torch.zeros(INNER, dtype=torch.float64)
    return BlockMoments(100, mean, mixing @ mixing.t(), gradients.t() @ gradients / 20), weight


def test_errors_are_those_of_forward_selection() -> None:
    moments, weight = moments_of(0)
    regression, selection = Regression.of(moments, weight), forward_selection(moments, weight)
    order = selection.order_E.tolist()
    for width in range(1, INNER):
        assert regression.error(order[:width]) == pytest.approx(float(selection.errors[width]), rel=1e-5)


def test_losses_and_gains_are_differences_of_errors() -> None:
    regression = Regression.of(*moments_of(1))
    kept = [0, 3, 4, 7]
    error = regression.error(kept)
    for place, loss in enumerate(regression.increases(kept).tolist()):
        assert regression.error(kept[:place] + kept[place + 1 :]) - error == pytest.approx(loss)
    for channel, gain in enumerate(regression.gains(kept).tolist()):
        if channel in kept:
            assert gain == -1
        else:
            assert error - regression.error([*kept, channel]) == pytest.approx(gain)


@pytest.mark.parametrize("seed", range(10))
def test_against_all_sets(seed: int) -> None:
    """Every step of backward elimination drops the best channel; no swap of one channel for another is left out."""
    moments, weight = moments_of(seed)
    regression = Regression.of(moments, weight)
    backward = backward_elimination(regression)
    assert sorted(backward) == list(range(INNER))
    for width in range(1, INNER):
        larger = backward[: width + 1]
        best = min(combinations(larger, width), key=regression.error)
        assert set(backward[:width]) == set(best)
        forward = forward_selection(moments, weight).order_E.tolist()[:width]
        kept, swaps = swapped(regression, forward)
        assert len(set(kept)) == width
        optimum = min(regression.error(chosen) for chosen in combinations(range(INNER), width))
        assert optimum * (1 - 1e-9) <= regression.error(kept) <= regression.error(forward)
        assert (swaps == 0) == (set(kept) == set(forward))


def test_the_table(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "selection.json"
    assert main(["selection", "--preset", str(tiny_study.preset), "--widths", "2", "5", "--json", str(file)]) == 0
    results = json.loads(file.read_text())["results"]
    assert [(row["layer"], row["width"]) for row in results] == [(0, 2), (0, 5), (1, 2), (1, 5)]
    assert all(row["errors"]["swapped"] <= row["errors"]["forward"] for row in results)
    assert "| 5 " in capsys.readouterr().out
