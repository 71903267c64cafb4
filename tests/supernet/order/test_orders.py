"""Every order, through the table that a configuration names it from."""

import pytest
import torch
from torch import nn

from search_spaces import GELU, Architecture
from supernet.build import build
from supernet.order.importance import neuron_importance, sort_channels, summed_loss
from supernet.order.moments import ModelMoments, sampled_loss
from supernet.order.orders import ORDERS, OrderInputs
from supernet.order.reconstruction import forward_selection
from tests.tiny import BASE, batch, inputs, shaken

BATCHES = [batch(6, 9, seed=seed) for seed in range(3)]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return shaken(build(Architecture.uniform(BASE, GELU, 2), num_labels=3)).eval()


def order_inputs(model: nn.Module, seed: int = 0) -> OrderInputs:
    return OrderInputs(model, BATCHES, summed_loss, sampled_loss(seed), seed)


@pytest.mark.parametrize("name", ORDERS)
def test_sorting_by_any_order_leaves_the_function(name: str, model: nn.Module) -> None:
    scores = ORDERS[name].channels(order_inputs(model))
    assert [len(layer) for layer in scores] == [2] * BASE.depth
    with torch.no_grad():
        expected = model(**inputs(BATCHES[0])).logits
        model.load_state_dict(sort_channels(model.state_dict(), scores, model.config))
        torch.testing.assert_close(model(**inputs(BATCHES[0])).logits, expected, rtol=1e-4, atol=1e-5)


def test_each_is_what_its_name_says(model: nn.Module) -> None:
    block = model.bert.encoder.layer[1].ffn[1]
    scores = {name: order.channels(order_inputs(model))[1][1] for name, order in ORDERS.items()}
    torch.testing.assert_close(
        scores["importance"], neuron_importance(model, BATCHES, summed_loss)[1][1], rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        scores["magnitude"],
        torch.stack([block.expand.weight[i].norm() * block.project.weight[:, i].norm() for i in range(BASE.inner)]),
    )
    moments = ModelMoments(model, BATCHES, sampled_loss(0)).blocks()
    order_E = forward_selection(moments[1][1], block.project.weight.detach())
    assert torch.equal(scores["reconstruction"].argsort(descending=True), order_E)
    assert scores["unsorted"].argsort(descending=True).tolist() == list(range(BASE.inner))
    assert not torch.equal(scores["random"], ORDERS["random"].channels(order_inputs(model, 1))[1][1])
