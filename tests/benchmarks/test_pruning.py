"""Kwon's and K-prune's pruning: what must not change when nothing is pruned, and small cases worked by hand."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from benchmarks.__main__ import main
from benchmarks.common import BenchmarkError
from benchmarks.pruning import TRIES, largest_within
from benchmarks.published_pruning import (
    Teacher,
    affordable,
    k_prune,
    kwon,
    macs,
    moments,
    rearranged,
    rescale,
    solve_again,
    sums,
    units_of,
)
from distill.encoders.student.anatomy import CHANNELS, HEADS
from nas.study.contributions import decode
from search_spaces import Architecture
from search_spaces.base import Base
from search_spaces.layer import Layer
from search_spaces.limits import Limit
from supernet.build import base_of_teacher, from_teacher
from tests.nas.tiny_study import TinyStudy
from tests.tiny import batch, bert, inputs

METHODS = [kwon, partial(k_prune, weight=1e-5)]
Method = Callable[[Teacher, int], PreTrainedModel]


def teacher_of(dense: PreTrainedModel, units: tuple[str, ...] = (HEADS, CHANNELS)) -> Teacher:
    batches = [batch(16, 9, seed=seed) for seed in range(6)]
    base, graph = base_of_teacher(dense.config)
    return Teacher(from_teacher(dense, stack=1), base, graph, 9, units, batches, nullcontext)


@pytest.mark.parametrize("heads", [True, False])
def test_every_method_is_measured(
    heads: bool, tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Students may have no heads at all, which the objective must not compare.
    tables = '[supernet]\ninheritance = "compensated"\n\n[objective]\nattention = 0.0\n\n[finetune]'
    sizes = "stacks = [0, 1]\nheads = [0, 1, 2, 4]" if heads else "stacks = [1]"
    preset = tiny_study.variant(tmp_path / "preset.toml", ("[finetune]", tables), ("stacks = [1, 2]", sizes))
    raw = tmp_path / "raw.json"
    command = ["pruning", "--preset", str(preset), "--rows", "64", "--supernets", "0", "--json", str(raw)]
    command += ["--steps", "0", "2", "--budgets"]
    budget = "2" if heads else "3/2"
    assert main([*command, budget]) == 0
    rows = json.loads(raw.read_text())["results"]["measured"]
    of_teacher = decode(rows.pop("teacher, supernet 0"))
    assert len(rows) == (7 if heads else 6)
    for name, row in rows.items():
        assert name == f"1/{budget}, {row['method']}, supernet 0" and len(row["scores"]) == 2
        assert decode(row["rows"][0]).shape == of_teacher.shape
        architecture = Architecture.from_json(row["architecture"])
        numbers = {layer.attention.heads for layer in architecture.layers}
        limit = macs(Architecture.uniform(architecture.base), 24) / Fraction(budget)
        assert macs(architecture, 24) == row["macs"] <= row["limit"] <= limit < row["limit"] + 1
        assert heads or numbers == {4}
    shown = " ".join(capsys.readouterr().out.split())
    assert f"| 1/{budget} | Kwon | 0." in shown and ("fewer layers" in shown) == heads and " ± " in shown
    if not heads:
        assert main([*command, "2"]) == 2
        assert "pruning: --budgets: the fewest heads and channels exceed " in capsys.readouterr().err


@pytest.mark.slow
def test_budgets_of_latency(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = '[supernet]\ninheritance = "compensated"\n\n[objective]\nattention = 0.0\n\n[finetune]'
    sizes = "stacks = [0, 1]\nheads = [0, 1, 2, 4]"
    preset = tiny_study.variant(tmp_path / "preset.toml", ("[finetune]", tables), ("stacks = [1, 2]", sizes))
    preset.write_text(preset.read_text() + '\n[deployment]\nruntime = "onnx-int8"\nthreads = 1\n')
    raw, methods = tmp_path / "raw.json", ["K-prune, 1e-05", "compensated, MILP allocation"]
    command = ["pruning", "--preset", str(preset), "--rows", "64", "--supernets", "0", "--json", str(raw), "--latency"]
    assert main([*command, "--steps", "0", "--budgets", "1/2", "--only", *methods]) == 0  # at least everything fits
    rows = json.loads(raw.read_text())["results"]["measured"]
    assert rows.pop("teacher, supernet 0") and [row["method"] for row in rows.values()] == methods
    assert all(0 < row["latency"] <= row["limit"] for row in rows.values())
    assert " ± " in capsys.readouterr().out
    assert main([*command, "--steps", "0", "--budgets", "1000", "--only", methods[0]]) == 2
    assert "pruning: --budgets: in 4 tries nothing was pruned to 0 ms" in capsys.readouterr().err
    assert main([*command, "--only", "Puzzle"]) == 2
    assert "--only 'Puzzle': the methods are Kwon, K-prune" in capsys.readouterr().err


@pytest.mark.parametrize("power", [0.5, 1, 2])
@pytest.mark.parametrize("maximum", [150, 400, 900])
def test_the_largest_within_a_latency(maximum: int, power: float) -> None:
    """The method keeps so many of 1,000 channels, of which a number takes its square, or its root, and 100."""
    base = Base(depth=1, width=24, heads=4, inner=1000)
    tried = []

    def latency(base: Base, layer: Layer) -> int:
        return int(1000 * (layer.ffn.inner(base) / 1000) ** power)

    def pruned(channels: int) -> tuple[int, Architecture]:
        tried.append(channels)
        return channels, Architecture.uniform(base, expansion=Fraction(channels, 1000))

    limit = Limit("latency", 100, latency, maximum)
    ends = [(channels, Architecture.uniform(base, expansion=Fraction(channels, 1000))) for channels in (1, 1000)]
    _, found = largest_within(limit, ends, pruned)
    within = [limit.total(pruned(channels)[1]) for channels in tuple(tried)]
    assert len(within) <= TRIES and limit.total(found) == max(total for total in within if total <= maximum)
    assert limit.total(found) > 0.8 * maximum
    assert largest_within(replace(limit, maximum=2000), ends, pruned)[1] == ends[1][1]
    with pytest.raises(BenchmarkError, match=r"nothing was pruned to 0\.05 ms; the smallest possible takes"):
        largest_within(replace(limit, maximum=50), ends, pruned)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("units", [(HEADS, CHANNELS), (CHANNELS,)])
def test_budgets(method: Method, units: tuple[str, ...]) -> None:
    teacher = teacher_of(bert(), units)
    largest = max(sublayer.macs for sublayer in teacher.sublayers)
    for budget in (teacher.whole_macs() * share // 10 for share in (6, 7, 9)):
        pruned = method(teacher, budget)
        kept = units_of(pruned)
        assert 0 <= budget - macs(kept.architecture(teacher.base, teacher.graph), 9) < largest
        assert HEADS in units or kept.heads == ((0, 1, 2, 3),) * 2


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_nothing_changes_if_everything_is_kept(method: Method) -> None:
    dense, given = bert(), inputs(batch())
    with torch.enable_grad():
        teacher = teacher_of(dense)
        pruned = method(teacher, teacher.whole_macs())
    torch.testing.assert_close(pruned(**given).logits, dense(**given).logits)


@pytest.mark.parametrize("method", METHODS)
def test_what_matters_most_is_kept(method: Method) -> None:
    """The outputs of all but one head and one channel are hardly more than zero."""
    dense = bert()
    with torch.no_grad():
        for number, layer in enumerate(dense.base_model.encoder.layer):
            for output, kept in ((layer.attention.output.dense, slice(6, 12)), (layer.output.dense, slice(17, 18))):
                factor_C = torch.full((output.in_features,), 0.01)
                factor_C[kept] = float(number)
                output.weight *= factor_C
        layer.intermediate.dense.bias[17] = 2.0
    teacher = teacher_of(dense)
    pruned = method(teacher, teacher.whole_macs() // 5)
    left = units_of(pruned)
    assert len(left.heads[1]) < 4 and len(left.channels[1]) < 48
    assert 1 in pruned.config.kept_heads[1]
    assert 2.0 in pruned.base_model.encoder.layer[1].ffn[0].expand.bias


@torch.no_grad()
def test_least_squares_is_that_of_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    output = nn.Linear(6, 4).double()
    input_NC = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    error_ND = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    before_DC = output.weight.clone()
    solve_again(output, input_NC.t() @ input_NC, input_NC.t() @ error_ND)
    expected = np.linalg.lstsq(input_NC.numpy(), (error_ND + input_NC @ before_DC.t()).numpy(), rcond=None)[0]
    np.testing.assert_allclose(output.weight.t().numpy(), expected, rtol=1e-9)


@torch.no_grad()
def test_factors_are_those_of_numpy() -> None:
    """Three units of two channels: the contribution of each to all outputs is a column."""
    generator = torch.Generator().manual_seed(0)
    output = nn.Linear(6, 4).double()
    input_NC = torch.randn(400, 6, generator=generator, dtype=torch.float64)
    error_ND = torch.randn(400, 4, generator=generator, dtype=torch.float64)
    weight_DC = output.weight.clone()
    columns = [(input_NC[:, at : at + 2] @ weight_DC[:, at : at + 2].t()).flatten().numpy() for at in (0, 2, 4)]
    matrix = np.stack(columns, axis=1)
    normal, right = matrix.T @ matrix, matrix.T @ error_ND.flatten().numpy()
    change = np.linalg.lstsq(np.concatenate([normal, np.eye(3)]), np.concatenate([right, np.zeros(3)]), rcond=None)[0]

    given = input_NC.t() @ input_NC, input_NC.t() @ error_ND
    assert rescale(output, 2, *given)
    factor_C = torch.from_numpy(1 + change).repeat_interleave(2)
    torch.testing.assert_close(output.weight.detach(), weight_DC * factor_C, rtol=1e-4, atol=1e-6)
    kept = output.weight.clone()
    assert not rescale(output, 2, given[0], 1000 * given[1]) and torch.equal(output.weight, kept)


@pytest.mark.parametrize("place", range(4))
def test_a_sublayer_solved_for_again_is_as_close_as_it_can_be(place: int) -> None:
    """What is left of the error is orthogonal to the inputs of the map."""
    teacher = teacher_of(bert())
    sublayer = teacher.sublayers[place]
    mask_U = torch.arange(4 if sublayer.unit == HEADS else 48) % 2 == 1
    model = teacher.only(teacher.model, {sublayer: mask_U})
    wanted_ND = sums(teacher, teacher.model)[sublayer]
    squares_CC, before_CD = moments(teacher, model, wanted_ND, sublayer)
    solve_again(sublayer.maps(model)[0], squares_CC, before_CD)
    _, after_CD = moments(teacher, model, wanted_ND, sublayer)
    assert float(after_CD.abs().max()) < 1e-4 * float(before_CD.abs().max())


def test_moments_of_first_tokens() -> None:
    teacher = teacher_of(bert())
    sublayer = teacher.sublayers[-1]
    wanted_ND, seen = sums(teacher, teacher.model)[sublayer], []
    output = sublayer.maps(teacher.model)[0]
    output.register_forward_pre_hook(lambda module, given: seen.append(given[0][:, 0].double()))
    squares_CC, products_CD = moments(teacher, teacher.model, wanted_ND, sublayer, of_first=True)
    first_NC = torch.cat(seen)
    torch.testing.assert_close(squares_CC, first_NC.t() @ first_NC, rtol=1e-5, atol=1e-5)
    assert float(products_CD.abs().max()) < 1e-4


def test_what_a_budget_affords() -> None:
    scores = [torch.tensor([5.0, 1.0, 4.0]), torch.tensor([0.5, 0.1])]
    expected = {3: [[0], [0]], 4: [[0], [0]], 5: [[0, 2], [0]], 8: [[0, 1, 2], [0, 1]]}
    for budget, kept in expected.items():
        masks = affordable(scores, [2, 1], [0, 1], budget)
        assert [torch.nonzero(mask)[:, 0].tolist() for mask in masks] == kept


def test_a_unit_is_swapped_for_the_one_whose_gradient_it_cancels() -> None:
    # Units 0 and 1 cancel each other; to prune both changes nothing, to first order.
    gradients_NU = torch.tensor([[1.0, -1.0, 0.5]], dtype=torch.float64)
    assert rearranged(gradients_NU, torch.tensor([True, False, False])).tolist() == [False, False, True]
