"""Latencies are measured side by side."""

from torch import nn

from nas.latency import latencies
from tests.tiny import batch, bert


def test_quartiles_of_every_model() -> None:
    models: dict[str, nn.Module] = {"one": bert(), "two": bert(num_hidden_layers=1).train()}
    found = latencies(models, batch(), rounds=5)
    assert list(found) == ["one", "two"]
    for latency in found.values():
        assert 0 < latency.lower <= latency.median <= latency.upper < 60
    assert not any(module.training for model in models.values() for module in model.modules())
