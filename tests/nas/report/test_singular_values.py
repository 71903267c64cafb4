"""Singular values of FFN output projections (MiniMoE, table 12)."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import svdvals
from transformers import BertModel

from nas.config.schema import ConfigError
from nas.inspect import main
from nas.report.singular_values import spectra
from search_spaces import FFN, GELU, Architecture, Experts
from supernet.build import build
from tests.tiny import BASE, bert, shaken

HALF = Fraction(1, 2)
MIXED = Architecture.of_ffns(
    replace(BASE, depth=2), (FFN(GELU, 1, HALF, Experts(3, Fraction(1), "token_gate")), FFN(GELU, 2, HALF))
)


def save(folder: Path) -> dict[str, np.ndarray]:
    model = shaken(build(MIXED), 1)
    model.save_pretrained(folder)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def test_every_map_of_a_mixture(tmp_path: Path) -> None:
    weights = save(tmp_path)
    found = spectra(tmp_path)
    places = [(1, 1, 1), (1, 1, 2), (1, 1, 3), (2, 1, None), (2, 2, None)]
    assert [(one.layer, one.block, one.expert) for one in found] == places
    for one in found:
        weight = weights[f"bert.encoder.layer.{one.layer - 1}.ffn.{one.block - 1}.project.weight"]
        own = weight if one.expert is None else weight[one.expert - 1]
        values = svdvals(own)
        assert one.shape == own.shape
        np.testing.assert_allclose(one.values, values / values.max(), rtol=1e-5, atol=1e-6)
        for threshold in (0.2, 0.9, 1.0):
            assert one.above(threshold) == sum(value > threshold * values.max() for value in values)


def test_a_decomposition_is_counted_where_it_saves(tmp_path: Path) -> None:
    """A map of rank 2 among 24 x 12 has 2 * 36 weights; one whose values are all alike keeps its own."""
    model = build(Architecture.uniform(replace(BASE, depth=3, inner=12)))
    low = np.outer(np.arange(1, 25), np.ones(12)) + np.outer(np.ones(24), np.arange(12))
    with torch.no_grad():
        for layer, weight in zip(model.bert.encoder.layer, (low, np.eye(24, 12), np.zeros((24, 12))), strict=True):
            layer.ffn[0].project.weight.copy_(torch.from_numpy(weight))
    model.save_pretrained(tmp_path)
    of_two, alike, nothing = spectra(tmp_path)
    assert (of_two.params(1e-5), alike.params(0.5), nothing.above(0.1)) == (2 * 36, 24 * 12, 0)


def test_a_bert(tmp_path: Path) -> None:
    teacher = bert(1)
    teacher.save_pretrained(tmp_path)
    found = spectra(tmp_path)
    assert [(one.layer, one.expert) for one in found] == [(1, None), (2, None)]
    expected = svdvals(teacher.bert.encoder.layer[1].output.dense.weight.detach().numpy())
    np.testing.assert_allclose(found[1].values, expected / expected.max(), rtol=1e-5)
    bare = tmp_path / "bare"
    teacher.bert.save_pretrained(bare)
    assert [one.shape for one in spectra(bare)] == [one.shape for one in found]
    assert isinstance(BertModel.from_pretrained(bare), BertModel)


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path)
    assert main([str(tmp_path), "--singular-values"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[:2] for row in rows] == [["1", "1"]] * 3 + [["2", "1"], ["2", "2"]]
    first = spectra(tmp_path)[0]
    assert rows[0][2:5] == ["1", f"{first.above(0.2)}/24", "="]


def test_what_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--singular-values"])
    assert "has no model.safetensors: give the folder of a checkpoint" in capsys.readouterr().err
    model = build(MIXED)
    with torch.no_grad():
        model.bert.encoder.layer[1].ffn[0].project.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"layer\.1\.ffn\.0\.project\.weight is not finite"):
        spectra(tmp_path)
