"""Forward selection against explicit regressions, and the moments that it works on."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from search_spaces import GELU, Architecture
from supernet.build import build
from supernet.order.moments import ModelMoments, Moments, MomentsError, sampled_loss
from supernet.order.reconstruction import forward_selection, forward_selection_of_heads
from tests.tiny import BASE, batch, inputs, shaken


def random_moments(inner: int = 12, width: int = 5, seed: int = 0) -> tuple[Moments, Tensor]:
    """Moments of correlated channels, and a weight."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(inner, inner, generator=generator, dtype=torch.float64)
    gradients = torch.randn(3 * width, width, generator=generator, dtype=torch.float64)
    covariance = mixed @ mixed.t() / inner
    weight = torch.randn(width, inner, generator=generator)
    return Moments(100, torch.zeros(inner).double(), covariance, gradients.t() @ gradients / len(gradients)), weight


def remaining(moments: Moments, weight: Tensor, kept: list[int]) -> float:
    """The error of the best prediction of the output from the kept channels, by the formula of a Schur complement."""
    rest = [channel for channel in range(weight.shape[1]) if channel not in kept]
    covariance = moments.covariance_EE
    conditional = covariance[rest][:, rest]
    if kept:
        across = covariance[kept][:, rest]
        conditional = conditional - across.t() @ torch.linalg.solve(covariance[kept][:, kept], across)
    lost = weight.double()[:, rest]
    return float(torch.trace(lost.t() @ moments.metric_DD @ lost @ conditional)) / 2


@pytest.mark.parametrize("inner", [12, 140])
def test_every_step_takes_the_channel_that_leaves_least(inner: int) -> None:
    """Of 140 channels, the covariance is updated twice."""
    moments, weight = random_moments(inner)
    order = forward_selection(moments, weight).tolist()
    assert sorted(order) == list(range(inner))
    for count in range(inner) if inner == 12 else (1, 63, 64, 65, 127, 128, 129):
        errors = {
            channel: remaining(moments, weight, [*order[:count], channel]) for channel in [*order[count:], order[-1]]
        }
        assert errors[order[count]] <= min(errors.values()) * (1 + 1e-6)


def test_channels_without_news_come_last() -> None:
    """One is constant, one repeats another, one is the sum of two."""
    moments, weight = random_moments(9)
    source = torch.zeros(12, 9, dtype=torch.float64)
    source[:9] = torch.eye(9)
    source[9, 3] = 1
    source[10, [1, 2]] = 1
    covariance = source @ moments.covariance_EE @ source.t()
    weight = torch.cat((weight, weight[:, :3]), dim=1)
    order = forward_selection(Moments(100, torch.zeros(12).double(), covariance, moments.metric_DD), weight)
    assert sorted(order.tolist()) == list(range(12))
    last = set(order[9:].tolist())
    # Of channels 3 and 9 either comes last, and of 1, 2 and 10 any.
    assert 11 in last and len({3, 9} & last) == 1 and len({1, 2, 10} & last) == 1


@pytest.mark.parametrize("labels", [1, 3])
def test_moments_are_those_of_tokens(labels: int) -> None:
    """Covariances of the inputs of `project`, and the metric as the exact Fisher information of the predictions, of
    numbers or of classes.
    """
    model = shaken(build(Architecture.uniform(BASE, GELU, 2), num_labels=labels)).eval()
    model.config.problem_type = "regression" if labels == 1 else None
    batches = [batch(4, 9, seed=1), batch(3, 6, seed=2)]
    moments = ModelMoments(model, batches, sampled_loss(0)).blocks()
    block = model.bert.encoder.layer[1].ffn[1]
    seen: dict[str, Tensor] = {}
    block.project.register_forward_hook(lambda module, given, output: seen.update(input=given[0], output=output))
    features, exact, tokens = [], torch.zeros(BASE.width, BASE.width, dtype=torch.float64), 0
    for one in batches:
        logits = model(**inputs(one)).logits
        # A number has a normal distribution of variance 1, whose information is that of its mean.
        log_probabilities = logits if labels == 1 else F.log_softmax(logits, dim=-1)
        weights = torch.ones_like(logits) if labels == 1 else log_probabilities.detach().exp()
        valid = one["attention_mask"].bool()
        features.append(seen["input"][valid])
        tokens += int(valid.sum())
        for row in range(len(valid)):
            for label in range(labels):
                (gradient,) = torch.autograd.grad(log_probabilities[row, label], seen["output"], retain_graph=True)
                of_tokens = gradient[row][valid[row]].double()
                exact += float(weights[row, label]) * of_tokens.t() @ of_tokens
    together = torch.cat(features).double()
    found = moments[1][1]
    assert found.tokens == tokens == len(together)
    torch.testing.assert_close(found.mean_E, together.mean(dim=0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.covariance_EE, torch.cov(together.t(), correction=0), rtol=1e-4, atol=1e-6)
    # Sampled labels give the exact metric on average.
    sampled = [ModelMoments(model, batches, sampled_loss(seed)).blocks()[1][1].metric_DD for seed in range(150)]
    mean, spread = torch.stack(sampled).mean(dim=0), torch.stack(sampled).std(dim=0) / 150**0.5
    assert bool(((mean - exact / tokens).abs() < 5 * spread + 1e-12).all())


def test_what_has_no_moments_is_refused() -> None:
    """No tokens; gradients, products and logits that are not finite; a head that starts at zero and was not trained."""
    model, loss = shaken(build(Architecture.uniform(BASE, GELU, 1), num_labels=3)).eval(), sampled_loss(0)
    expand, project = (getattr(model.bert.encoder.layer[0].ffn[0], name).weight.data for name in ("expand", "project"))

    def refused(message: str, *batches: dict[str, Tensor], scale: float = 1.0) -> None:
        with pytest.raises(MomentsError, match=message):
            ModelMoments(model, batches, lambda model, given: scale * loss(model, given)).blocks()

    refused("no tokens")
    refused("layer 0, block 0: activations or gradients are not finite", batch(), scale=1e30)
    expand[0], project[:, 0] = 1e30 * expand[0], 0
    refused("layer 0, block 0: activations are not finite", batch())
    expand[0] = torch.nan
    refused("logits are not finite", batch())
    expand[0] = 0
    model.classifier.weight.data.zero_()
    refused("layer 0, block 0: the predictions do not depend .*train the supernet longer", batch())


def test_of_equal_channels_the_first_comes_first() -> None:
    """With nothing to tell channels apart they keep their order, across panels, too."""
    for inner in (12, 130):
        equal = Moments(100, torch.zeros(inner).double(), torch.eye(inner).double(), torch.eye(3).double())
        assert forward_selection(equal, torch.ones(3, inner)).tolist() == list(range(inner))
        assert forward_selection_of_heads(equal, torch.ones(3, inner), inner // 2).tolist() == list(range(inner // 2))


def test_moments_of_channels_far_from_zero() -> None:
    """A constant channel has no variance, and one whose mean is ten thousand times its deviation keeps its own."""
    torch.manual_seed(0)
    model = shaken(build(Architecture.uniform(BASE, GELU, 1), num_labels=3)).eval()
    block = model.bert.encoder.layer[0].ffn[0]
    with torch.no_grad():
        block.expand.weight[0] = 0
        block.expand.bias[0] = 0.37
        block.expand.weight[1] *= 0.01 / block.expand.weight[1].norm()
        block.expand.bias[1] = 100
    batches = [batch(6, 9, seed=seed) for seed in range(3)]
    kept: list[Tensor] = []
    block.project.register_forward_hook(lambda _, arguments, output: kept.append(arguments[0]))
    moments = ModelMoments(model, batches, sampled_loss(0)).blocks()[0][0]
    valid = [part[given["attention_mask"].bool()] for part, given in zip(kept, batches, strict=True)]
    values = torch.cat(valid).detach().double()
    assert float(moments.covariance_EE[0, 0]) == pytest.approx(0, abs=1e-12)
    assert float(moments.covariance_EE[1, 1]) == pytest.approx(float(values[:, 1].var(unbiased=False)), rel=1e-2)
    torch.testing.assert_close(moments.mean_E, values.mean(dim=0), rtol=1e-5, atol=1e-6)
