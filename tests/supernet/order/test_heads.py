"""The order of attention heads and their predicted losses, against explicit regressions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers, part
from search_spaces import GELU, Architecture
from supernet.build import base_of_teacher, build
from supernet.order.importance import sort_heads, summed_loss
from supernet.order.moments import ModelMoments, Moments, MomentsError, sampled_loss
from supernet.order.orders import ORDERS, OrderInputs
from supernet.order.prediction import predicted_losses_of_heads
from supernet.order.reconstruction import forward_selection_of_heads
from tests.renamed import of_every_kind
from tests.supernet.order.test_reconstruction import random_moments, remaining
from tests.tiny import BASE, batch, bert, inputs, shaken

BATCHES = [batch(12, 12, seed=seed) for seed in range(6)]
HEADS, SIZE = BASE.heads, BASE.width // BASE.heads


TEACHERS = of_every_kind(bert())


@pytest.fixture(params=TEACHERS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    template = TEACHERS[request.param].config
    base = replace(base_of_teacher(template)[0], depth=BASE.depth)
    torch.manual_seed(0)
    return shaken(build(Architecture.uniform(base, GELU, 2), num_labels=3, template=template)).eval()


def order_inputs(model: nn.Module, seed: int = 0) -> OrderInputs:
    return OrderInputs(model, BATCHES, summed_loss, sampled_loss(seed), seed)


def attended(model: nn.Module, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs of a layer, of its output projection and the map's outputs, (N, ...), of all tokens of the batches."""
    own, kept = encoder_layers(model)[layer], []
    output_map = part(own, family_of(model).output)
    hooks = [own.register_forward_pre_hook(lambda _, given: kept.append([given[0]]))]
    hooks.append(output_map.register_forward_hook(lambda _, given, out: kept[-1].extend((given[0], out))))
    with torch.no_grad():
        for given in BATCHES:
            model(**inputs(given))
    for hook in hooks:
        hook.remove()
    valid = [given["attention_mask"].bool() for given in BATCHES]
    x, context, output = (
        torch.cat([part[mask] for part, mask in zip(parts, valid, strict=True)]) for parts in zip(*kept, strict=True)
    )
    return x, context, output


def has_biases(model: nn.Module) -> bool:
    """Whether the output projections of attentions have biases, which can make up for what means lose."""
    return family_of(model).biases != "none"


def channels_of(heads: list[int], size: int) -> list[int]:
    return [head * size + offset for head in heads for offset in range(size)]


@pytest.mark.parametrize(("heads", "seed"), [(4, 0), (6, 1), (12, 2)])
def test_every_step_takes_the_head_that_leaves_least(heads: int, seed: int) -> None:
    moments, weight = random_moments(seed=seed)
    size, kept = 12 // heads, []
    for head in forward_selection_of_heads(moments, weight, heads).tolist():
        left = {
            other: remaining(moments, weight, channels_of([*kept, other], size))
            for other in range(heads)
            if other not in kept
        }
        assert left[head] == pytest.approx(min(left.values()), rel=1e-6, abs=1e-9)
        kept.append(head)
    assert sorted(kept) == list(range(heads))


def test_a_head_without_news_comes_last() -> None:
    """One repeats another one, and one is constant; or all are."""
    moments, weight = random_moments(8)
    source = torch.zeros(12, 8, dtype=torch.float64)
    source[:8] = torch.eye(8)
    source[8:10] = source[2:4]
    repeated = Moments(100, torch.zeros(12).double(), source @ moments.covariance_EE @ source.t(), moments.metric_DD)
    order = forward_selection_of_heads(repeated, torch.cat((weight, weight[:, 2:6]), dim=1), 6).tolist()
    constant = Moments(100, torch.zeros(12).double(), torch.zeros(12, 12).double(), moments.metric_DD)
    assert sorted(forward_selection_of_heads(constant, torch.ones(5, 12), 6).tolist()) == list(range(6))
    assert sorted(order) == list(range(6)) and 5 in order[4:] and len({1, 4} & {*order[4:]}) == 1


def test_moments_are_those_of_the_output_map(model: nn.Module) -> None:
    _, context, _ = attended(model, 1)
    found, context = ModelMoments(model, BATCHES, sampled_loss(0)).attentions()[1], context.double()
    torch.testing.assert_close(found.mean_E, context.mean(dim=0), rtol=1e-4, atol=1e-5)
    expected = torch.cov(context.t(), correction=0) if has_biases(model) else context.t() @ context / len(context)
    torch.testing.assert_close(found.covariance_EE, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ORDERS)
@torch.no_grad()
def test_sorting_by_any_order_leaves_the_function(name: str, model: nn.Module) -> None:
    with torch.enable_grad():
        scores = ORDERS[name].heads(order_inputs(model))
    assert [len(layer) for layer in scores] == [HEADS] * BASE.depth
    expected = model(**inputs(BATCHES[0])).logits
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.load_state_dict(sort_heads(model.state_dict(), scores, model.config))
    model.config.kept_heads = [layer.argsort(descending=True, stable=True).tolist() for layer in scores]
    torch.testing.assert_close(model(**inputs(BATCHES[0])).logits, expected, rtol=1e-4, atol=1e-5)
    family = family_of(model)
    for number, (layer, of_layer) in enumerate(zip(encoder_layers(model), scores, strict=True)):
        rows = channels_of(of_layer.argsort(descending=True, stable=True).tolist(), SIZE)
        key = f"{model.base_model_prefix}.{family.layers}.{number}.{family.value}.weight"
        assert torch.equal(part(layer, family.value).weight, before[key][rows])


def test_each_is_what_its_name_says(model: nn.Module) -> None:
    layer, family = encoder_layers(model)[1], family_of(model)
    scores = {name: order.heads(order_inputs(model))[1] for name, order in ORDERS.items()}
    value, output = part(layer, family.value).weight, part(layer, family.output).weight
    norms = [value[rows].norm() * output[:, rows].norm() for rows in (channels_of([h], SIZE) for h in range(HEADS))]
    torch.testing.assert_close(scores["magnitude"], torch.stack(norms))
    moments = ModelMoments(model, BATCHES, sampled_loss(0)).attentions()[1]
    selected = forward_selection_of_heads(moments, output.detach(), HEADS)
    assert torch.equal(scores["reconstruction"].argsort(descending=True), selected)
    assert scores["unsorted"].argsort(descending=True).tolist() == list(range(HEADS))
    assert not torch.equal(scores["random"], ORDERS["random"].heads(order_inputs(model, 1))[1])
    # The derivative of the loss with respect to a factor of a head's output, sample by sample.
    factor = torch.ones(HEADS, requires_grad=True)
    scale = lambda _, given: (given[0] * factor.repeat_interleave(SIZE),)  # noqa: E731
    part(layer, family.output).register_forward_pre_hook(scale)
    importance = torch.zeros(HEADS)
    for given in BATCHES:
        for row in range(len(given["labels"])):
            one = {name: tensor[row : row + 1] for name, tensor in given.items()}
            (gradient,) = torch.autograd.grad(summed_loss(model, one), factor)
            importance += gradient.abs()
    torch.testing.assert_close(scores["importance"].float(), importance, rtol=1e-3, atol=1e-5)


def error(residuals_ND: np.ndarray, metric_DD: Tensor) -> float:
    return float(((residuals_ND @ metric_DD.numpy()) * residuals_ND).sum() / len(residuals_ND) / 2)


def test_predicted_losses_are_errors_in_the_fisher_metric(model: nn.Module) -> None:
    losses = predicted_losses_of_heads(model, BATCHES, ModelMoments(model, BATCHES, sampled_loss(0)).fisher_matrices())
    assert [len(layer) for layer in losses] == [HEADS + 1] * BASE.depth
    for layer in range(BASE.depth):
        x, context, output = attended(model, layer)
        metric = ModelMoments(model, BATCHES, sampled_loss(0)).attentions()[layer].metric_DD
        target = (output - output.mean(dim=0) * has_biases(model)).double().numpy()
        for heads in range(1, HEADS):
            constant = np.full(len(x), float(has_biases(model)))
            features = np.column_stack((constant, context[:, : heads * SIZE].double().numpy()))
            residuals = target - features @ np.linalg.lstsq(features, target, rcond=None)[0]
            assert float(losses[layer][heads]) == pytest.approx(error(residuals, metric), rel=1e-3, abs=1e-10)
        if family_of(model).pre_norm:  # Without heads, the bias alone.
            assert float(losses[layer][0]) == pytest.approx(error(target, metric), rel=1e-3)
            continue
        # Without heads, an affine function of the same channel of the input.
        columns = zip(x.double().numpy().T, target.T, strict=True)
        lines = np.stack([np.polyval(np.polyfit(a, b, 1), a) for a, b in columns], axis=1)
        assert float(losses[layer][0]) == pytest.approx(error(target - lines, metric), rel=1e-3)
        assert float(losses[layer][-1]) == pytest.approx(0, abs=1e-4 * float(losses[layer][0]))


def test_what_has_no_prediction(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_submodule("classifier").apply(lambda module: [part.zero_() for part in module.parameters()])
    with pytest.raises(MomentsError, match="layer 0, block 0: the predictions do not depend on its output"):
        predicted_losses_of_heads(model, BATCHES, ModelMoments(model, BATCHES, sampled_loss(0)).fisher_matrices())
