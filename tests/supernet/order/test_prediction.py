"""Predicted losses against explicit regressions, and against what a solved slice really loses."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers
from distill.encoders.student import ffn
from search_spaces import GELU, Architecture, FFNGraph
from supernet.build import base_of_teacher, build, from_teacher
from supernet.embedding import of_rank
from supernet.module_inputs import module_inputs
from supernet.order.importance import sort_channels, summed_loss
from supernet.order.moments import ModelMoments, MomentsError, sampled_loss
from supernet.order.orders import ORDERS, OrderInputs
from supernet.order.prediction import predicted_losses, predicted_losses_of_ranks, regression_errors
from supernet.order.reconstruction import root_of
from tests.renamed import of_every_kind
from tests.supernet.order.test_reconstruction import remaining
from tests.tiny import BASE, batch, bert, inputs, shaken

# More tokens than channels, so that no regression is exact by chance.
BATCHES = [batch(12, 12, seed=seed) for seed in range(6)]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return shaken(build(Architecture.uniform(BASE, GELU, 2), num_labels=3)).eval()


def least_squares(channels_NE: Tensor, target_ND: Tensor) -> float:
    """The mean squared error of the regression on these channels and a constant."""
    features = np.column_stack((np.ones(len(channels_NE)), channels_NE.double().numpy()))
    solution, *_ = np.linalg.lstsq(features, target_ND.numpy(), rcond=None)
    return float(((target_ND.numpy() - features @ solution) ** 2).sum() / len(features))


def test_errors_are_those_of_regressions() -> None:
    generator = torch.Generator().manual_seed(0)
    channels = torch.randn(200, 7, generator=generator) * torch.tensor([1e-3, 1, 50, 1, 1, 1, 1]) + 3
    channels[:, 4] = 2.5  # constant
    channels[:, 5] = channels[:, 1] + channels[:, 3]  # nothing new
    target = torch.randn(200, 3, generator=generator).double() + channels[:, :1].double() * 1e3
    target -= target.mean(dim=0)
    errors = regression_errors(channels, target)
    expected = [least_squares(channels[:, :kept], target) for kept in range(8)]
    # Least squares without a ridge also fits the rounding errors of the channel without news.
    assert errors.tolist() == pytest.approx(expected, rel=5e-3)
    assert errors[4] == pytest.approx(float(errors[5]), rel=1e-3) == pytest.approx(float(errors[6]), rel=1e-3)


@pytest.mark.parametrize(("rows", "rank"), [(50, 64), (2000, 5)])
def test_regressions_without_a_single_solution(rows: int, rank: int) -> None:
    """Fewer rows than channels, or channels that depend on each other."""
    generator = torch.Generator().manual_seed(0)
    channels = torch.relu(
        torch.randn(rows, rank, generator=generator) @ torch.randn(rank, 64, generator=generator) + 40
    )
    target = torch.randn(rows, 2, generator=generator).double()
    target -= target.mean(dim=0)
    errors = regression_errors(channels, target)
    assert bool(torch.isfinite(errors).all()) and bool((errors.diff() <= 1e-9).all())
    assert float(errors[0]) == pytest.approx(float(target.square().sum()) / rows)
    expected = least_squares(channels, target)
    assert float(errors[-1]) == pytest.approx(expected, rel=2e-2, abs=0.05 * float(errors[0]))


@pytest.mark.parametrize("formula", ["project(gelu(expand(x)))", "project(mul(gelu(expand(x)),gate(x)))"])
def test_losses_are_errors_in_the_fisher_metric(formula: str) -> None:
    torch.manual_seed(0)
    model = shaken(build(Architecture.uniform(BASE, FFNGraph.parse(formula), 2), num_labels=3)).eval()
    matrices = ModelMoments(model, BATCHES, sampled_loss(0)).fisher_matrices()
    found = predicted_losses(model, BATCHES, matrices, ["gelu", "relu"], 20)
    assert {op: [len(layer) for layer in layers] for op, layers in found.items()} == {
        op: [21] * BASE.depth for op in ("gelu", "relu")
    }
    metric = ModelMoments(model, BATCHES, sampled_loss(0)).blocks()[1][0].metric_DD
    block = model.bert.encoder.layer[1].ffn[0]
    kept: list[Tensor] = []
    block.register_forward_pre_hook(lambda _, arguments: kept.append(arguments[0]))
    with torch.no_grad():
        for given in BATCHES:
            model(**inputs(given))
        x = torch.cat([states[given["attention_mask"].bool()] for states, given in zip(kept, BATCHES, strict=True)])
        output = block.f(x)
        relu = torch.relu(block.expand(x))[:, :20] * (block.gate(x)[:, :20] if "gate" in formula else 1)
    values, vectors = np.linalg.eigh(metric.numpy())
    root = torch.from_numpy(vectors * np.sqrt(values.clip(min=0)))
    target = (output - output.mean(dim=0)).double() @ root
    columns = zip(x.double().T.numpy(), (output - output.mean(dim=0)).double().T.numpy(), strict=True)
    residuals = [y - np.polyval(np.polyfit(x_d, y, 1), x_d) for x_d, y in columns]
    without = (np.stack(residuals, axis=1) @ root.numpy()) ** 2
    assert float(found["relu"][1][0]) == pytest.approx(float(without.sum()) / len(x) / 2, rel=1e-3)
    assert float(found["relu"][1][0]) == float(found["gelu"][1][0])
    for width in (3, 20):
        assert float(found["relu"][1][width]) == pytest.approx(least_squares(relu[:, :width], target) / 2, rel=1e-3)


@pytest.mark.parametrize("name", ["nomic", "modernbert", "eurobert"])
@torch.no_grad()
def test_losses_without_a_bias(name: str) -> None:
    """They are those of regressions without a constant: nothing makes up for the mean of channels that are missing."""
    teacher = of_every_kind(bert())[name]
    base, graph = base_of_teacher(teacher.config)
    model = from_teacher(teacher, stack=1).eval()
    blocks = [layer.ffn[0] for layer in encoder_layers(model)]
    with torch.enable_grad():
        matrices = ModelMoments(model, BATCHES, sampled_loss(0)).fisher_matrices()
    found = predicted_losses(model, BATCHES, matrices, [str(graph.activation)], base.inner)[str(graph.activation)]
    for block, metric, losses, channels in zip(
        blocks, matrices.ffns, found, module_inputs(model, [block.project for block in blocks], BATCHES), strict=True
    ):
        h, output, root = channels.double().numpy(), block.project(channels).double().numpy(), root_of(metric).numpy()
        for width in (3, 20):
            lost = output - h[:, :width] @ np.linalg.lstsq(h[:, :width], output, rcond=None)[0]
            expected = float(((lost @ root) ** 2).sum()) / len(h) / 2
            assert float(losses[width]) == pytest.approx(expected, rel=1e-3)
        if base.pre_norm:
            assert float(losses[0]) == pytest.approx(float(((output @ root) ** 2).sum()) / len(h) / 2, rel=1e-3)


def test_the_base_graph_loses_what_the_second_moments_say(model: nn.Module) -> None:
    scores = ORDERS["reconstruction"].channels(OrderInputs(model, BATCHES, summed_loss, sampled_loss(0), 0))
    model.load_state_dict(sort_channels(model.state_dict(), scores, model.config))
    moments = ModelMoments(model, BATCHES, sampled_loss(0)).blocks()
    losses = predicted_losses(
        model, BATCHES, ModelMoments(model, BATCHES, sampled_loss(0)).fisher_matrices(), ["gelu"], BASE.inner
    )["gelu"]
    for layer, (of_block, _), loss in zip(model.bert.encoder.layer, moments, losses, strict=True):
        weight = layer.ffn[0].project.weight.detach()
        none, *expected = (remaining(of_block, weight, list(range(kept))) for kept in range(BASE.inner))
        torch.testing.assert_close(loss[1:-1], torch.tensor(expected).double(), rtol=2e-2, atol=1e-4 * none)
        assert bool((loss[1:].diff() <= 1e-12).all())
        assert float(loss[0]) <= none * (1 + 1e-6), "no worse than a constant"
        assert float(loss[-1]) == pytest.approx(0, abs=1e-4 * float(loss[0]))


def test_what_has_no_prediction(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MomentsError, match="no tokens"):
        ModelMoments(model, [], sampled_loss(0)).fisher_matrices()
    matrices = ModelMoments(model, BATCHES, sampled_loss(0)).fisher_matrices()
    monkeypatch.setitem(ffn.UNARY, "overflow", lambda x: torch.exp(1e3 + x.abs()))
    with pytest.raises(MomentsError, match="layer 0: the outputs of overflow are not finite"):
        predicted_losses(model, BATCHES, matrices, ["gelu", "overflow"], 4)
    with torch.no_grad():
        model.bert.encoder.layer[2].ffn[0].expand.bias[0] = torch.nan
    with pytest.raises(MomentsError):
        predicted_losses(model, BATCHES, ModelMoments(model, BATCHES, summed_loss).fisher_matrices(), ["gelu"], 4)


def test_losses_of_ranks_are_what_words_lose_in_the_fisher_metric(model: nn.Module) -> None:
    """Token by token, with the inherited words of every rank, and gradients of our own."""
    frequencies = torch.arange(BASE.vocabulary)
    found = predicted_losses_of_ranks(model, BATCHES, sampled_loss(0), frequencies)
    words = model.get_input_embeddings()
    states: list[Tensor] = []
    model.bert.embeddings.LayerNorm.register_forward_pre_hook(lambda _, arguments: states.append(arguments[0]))
    loss = sampled_loss(0)
    gradients, ids = [], []
    for given in BATCHES:
        total, valid = loss(model, given), given["attention_mask"].bool()
        gradients.append(torch.autograd.grad(total, states.pop())[0][valid])
        ids.append(given["input_ids"][valid])
    gradient_ND, id_N = torch.cat(gradients).double(), torch.cat(ids)
    metric_DD = gradient_ND.t() @ gradient_ND / len(gradient_ND)
    expected = []
    for rank in range(1, BASE.width):
        low = of_rank(model.state_dict(), "bert.", family_of(model), rank, frequencies)
        prefix = "bert.embeddings.word_embeddings"
        lost_VD = words.weight.detach() - low[f"{prefix}.weight"] @ low[f"{prefix}.map.weight"].t()
        lost_ND = lost_VD[id_N].double()
        expected.append(float(((lost_ND @ metric_DD) * lost_ND).sum() / len(id_N) / 2))
    assert found[1:-1].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-9)
    assert len(found) == BASE.width + 1 and found[-1] == 0
    all_ND = words.weight.detach()[id_N].double()
    assert float(found[0]) == pytest.approx(float(((all_ND @ metric_DD) * all_ND).sum() / len(id_N) / 2))
    with pytest.raises(MomentsError, match="no tokens"):
        predicted_losses_of_ranks(model, [], sampled_loss(0), frequencies)
    with pytest.raises(MomentsError, match="not finite"):
        predicted_losses_of_ranks(model, BATCHES, lambda model, given: 1e200 * loss(model, given), frequencies)
