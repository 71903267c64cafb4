"""Predicted losses of graphs relative to the base graph's."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.signals.operations import ratios
from search_spaces import GELU
from supernet.build import build, full_architecture
from tests.nas.tiny_study import TinyStudy
from tests.tiny import BASE, shaken


def test_ratios_are_those_of_regressions() -> None:
    torch.manual_seed(0)
    block = shaken(build(full_architecture(BASE, GELU, 1))).eval().bert.encoder.layer[0].ffn[0]
    x_ND = torch.randn(400, BASE.width)
    root_DD = torch.randn(BASE.width, BASE.width).double()
    found = ratios(block, x_ND, root_DD, 10, "gelu(expand(x))")
    with torch.no_grad():
        target = block.f(x_ND).double() @ root_DD
        h, x = block.expand(x_ND)[:, :10], x_ND[:, :10]

    def error(channels: torch.Tensor) -> float:
        features = np.column_stack((np.ones(400), channels.double().numpy()))
        solution, *_ = np.linalg.lstsq(features, target.numpy(), rcond=None)
        return float(((target.numpy() - features @ solution) ** 2).sum())

    base = error(block.apply_op("gelu", [h]))
    assert found["gelu(expand(x))"] == 1
    assert found["tanh(expand(x))"] == pytest.approx(error(torch.tanh(h)) / base, rel=1e-3)
    assert found["mul(expand(x),x)"] == pytest.approx(error(h * x) / base, rel=1e-3)
    assert found["max(x,relu(expand(x)))"] == pytest.approx(error(torch.maximum(x, torch.relu(h))) / base, rel=1e-3)
    assert not any("expand" not in name for name in found)


def test_the_table(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "operations.json"
    assert main(["operations", "--preset", str(tiny_study.preset), "--widths", "4", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    results = json.loads(file.read_text())["results"]
    assert list(results) == ["layer 1, 4 channels", "layer 2, 4 channels"]
    for found in results.values():
        assert found["gelu(expand(x))"] == 1 and all(ratio > 0 for ratio in found.values())
    assert "| tanh(expand(x))" in printed and "relative to gelu(expand(x))" in printed
