"""Every order, through the table that a configuration names it from."""

import pytest
import torch
from torch import nn

from search_spaces import GELU
from supernet.build import build, full_architecture
from supernet.order.importance import neuron_importance, sort_channels, summed_loss
from supernet.order.moments import block_moments, sampled_loss
from supernet.order.orders import ORDERS, OrderInputs
from supernet.order.reconstruction import forward_selection
from tests.tiny import BASE, batch, inputs, shaken

BATCHES = [batch(6, 9, seed=seed) for seed in range(3)]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return shaken(build(full_architecture(BASE, GELU, 2), labels=3)).eval()


def order_inputs(model: nn.Module, seed: int = 0) -> OrderInputs:
    return OrderInputs(model, BATCHES, summed_loss, sampled_loss(seed), seed)


@pytest.mark.parametrize("name", ORDERS)
def test_sorting_by_any_order_leaves_the_function(name: str, model: nn.Module) -> None:
    ordering = ORDERS[name](order_inputs(model))
    assert [len(layer) for layer in ordering.scores] == [2] * BASE.depth
    with torch.no_grad():
        expected = model(**inputs(BATCHES[0])).logits
        model.load_state_dict(sort_channels(model.state_dict(), ordering.scores, model.config))
        torch.testing.assert_close(model(**inputs(BATCHES[0])).logits, expected, rtol=1e-4, atol=1e-5)


def test_each_is_what_its_name_says(model: nn.Module) -> None:
    block = model.bert.encoder.layer[1].ffn[1]
    found = {name: order(order_inputs(model)) for name, order in ORDERS.items()}
    torch.testing.assert_close(
        found["importance"].scores[1][1], neuron_importance(model, BATCHES, summed_loss)[1][1], rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        found["magnitude"].scores[1][1],
        torch.stack([block.expand.weight[i].norm() * block.project.weight[:, i].norm() for i in range(BASE.inner)]),
    )
    moments = block_moments(model, BATCHES, sampled_loss(0))
    selection = forward_selection(moments[1][1], block.project.weight.detach())
    assert torch.equal(found["reconstruction"].scores[1][1].argsort(descending=True), selection.order_E)
    assert not torch.equal(found["random"].scores[1][1], ORDERS["random"](order_inputs(model, 1)).scores[1][1])


def test_reconstruction_predicts_the_loss_of_every_width(model: nn.Module) -> None:
    errors = ORDERS["reconstruction"](order_inputs(model)).errors
    assert errors is not None and [len(layer) for layer in errors] == [BASE.inner + 1] * BASE.depth
    for layer in errors:
        assert bool((layer.diff() <= 1e-12).all()) and float(layer[0]) > 0
        assert float(layer[-1]) == pytest.approx(0, abs=1e-6 * float(layer[0]))
    assert all(ORDERS[name](order_inputs(model)).errors is None for name in ORDERS if name != "reconstruction")
