"""The layers and networks that are compared compute what they stand for."""

import pytest
import torch
from torch.nn import functional as F

from benchmarks.speed.experts import VOCABULARY, layers_of
from benchmarks.speed.ffn_graph import Written, base_block
from benchmarks.speed.latency import errors


def test_the_written_network_is_the_graph() -> None:
    torch.manual_seed(0)
    block = base_block(6, 10)
    x_ND = torch.randn(5, 6)
    assert torch.equal(block.f(x_ND), Written(block)(x_ND))


def test_the_published_scheme_gives_each_token_to_its_expert() -> None:
    torch.manual_seed(0)
    published = layers_of(8, 12, 3)["published"]
    hidden_BTD, ids_BT = torch.randn(2, 7, 8), torch.randint(VOCABULARY, (2, 7))
    output_BTD = published(hidden_BTD, ids_BT)
    for hidden_D, output_D, token in zip(
        hidden_BTD.flatten(0, 1), output_BTD.flatten(0, 1), ids_BT.flatten(), strict=True
    ):
        expert = published.experts[int(published.table[token])]
        inner_E = F.gelu(expert.expand(hidden_D), approximate="tanh")
        torch.testing.assert_close(output_D, expert.norm(hidden_D + expert.project(inner_E)))


def test_all_layers_keep_the_shape() -> None:
    torch.manual_seed(0)
    hidden_BTD, ids_BT = torch.randn(2, 6, 8), torch.randint(VOCABULARY, (2, 6))
    for layer in layers_of(8, 12, 3).values():
        assert layer(hidden_BTD, ids_BT).shape == hidden_BTD.shape


def test_errors_of_predictions() -> None:
    assert errors([1.1, 0.8, 1.0], [1.0, 1.0, 1.0]) == pytest.approx((10.0, 20.0, -10 / 3))
