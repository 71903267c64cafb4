"""Kwon's and K-prune's pruning: what must not change when nothing is pruned, and small cases worked by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.__main__ import main
from benchmarks.pruning import blocks_of, highest, k_prune, kwon, pruned, rearranged, rescale
from distill.tasks.encoding import collate
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.prepare import prepare
from tests.nas.tiny_study import TinyStudy


@pytest.fixture
def evaluator(tiny_study: TinyStudy) -> TrainedEvaluator:
    return TrainedEvaluator(prepare(load_config(str(tiny_study.preset)), "cpu"), "cpu")


def test_every_method_is_measured(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw.json"
    command = ["pruning", "--preset", str(tiny_study.preset), "--budgets", "4", "--rows", "64", "--json", str(raw)]
    assert main([*command, "--steps", "0", "2", "--supernets", "0"]) == 0
    rows = json.loads(raw.read_text())["results"]["measured"]["1/4, supernet 0"]
    assert set(rows) >= {"Kwon", "K-prune, 0.00025", "compensated, global importance"}
    assert all(sum(row["widths"]) <= 2 * 16 for row in rows.values()), "a quarter of two layers of 64 neurons"
    assert all(sum(row["widths"]) == 2 * 16 for name, row in rows.items() if name.startswith("K"))
    assert "| Kwon |" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("method", [kwon, lambda *arguments: k_prune(*arguments, weight=1e-5)])
def test_nothing_changes_if_every_neuron_is_kept(evaluator: TrainedEvaluator, method) -> None:  # type: ignore[no-untyped-def]
    batches = [collate(evaluator.search_rows, np.arange(start, start + 16), 0) for start in (0, 16, 32)]
    whole = pruned(evaluator, batches, 128, lambda *arguments: None)
    kept = pruned(evaluator, batches, 128, method)
    assert [block.expand.out_features for block in blocks_of(kept)] == [64, 64]
    assert evaluator.score(kept).value == pytest.approx(evaluator.score(whole).value, abs=0.02)


def test_the_highest_neurons_of_all_layers() -> None:
    kept_of_layers = highest([torch.tensor([5.0, 1.0, 4.0]), torch.tensor([0.5, 0.1])], 2)
    assert [kept.tolist() for kept in kept_of_layers] == [[0, 2], [0]], "every layer keeps one"


def test_a_neuron_is_swapped_for_the_one_whose_gradient_it_cancels() -> None:
    # Neurons 0 and 1 cancel each other; to prune both changes nothing, to first order.
    gradients_NE = torch.tensor([[1.0, -1.0, 0.5]], dtype=torch.float64)
    assert rearranged(gradients_NE, torch.tensor([0])).tolist() == [2]


def test_factors_reduce_the_error() -> None:
    generator = torch.Generator().manual_seed(0)
    block = nn.Module()
    block.project = nn.Linear(6, 4)
    input_NE = torch.randn(400, 6, generator=generator, dtype=torch.float64)
    factor_E = torch.tensor([1.0, 2.0, 0.5, 1.5, 1.0, 3.0], dtype=torch.float64)
    weight_DE = block.project.weight.detach().double()
    error_ND = (input_NE * (factor_E - 1)) @ weight_DE.t()
    assert rescale(block, input_NE, error_ND)
    torch.testing.assert_close(block.project.weight.detach().double(), weight_DE * factor_E, atol=0.05, rtol=0.05)
    assert not rescale(block, input_NE, 100 * error_ND)
