"""A dense BERT split into experts: the function of copies, the order of channels, the widths."""

import pytest
import torch

from search_spaces import ArchitectureError
from supernet.build import from_teacher
from supernet.experts.split import channel_scores, mixture_architecture, split_model
from tests.tiny import batch, bert, inputs


@pytest.mark.parametrize("routing", ["hash", "balanced_hash", "sentence_gate"])
def test_copies_compute_what_the_dense_model_computes(routing: str) -> None:
    dense = bert()
    architecture = mixture_architecture(dense.config, 4, copy=True, routing=routing)
    scores = channel_scores(dense, [batch()], "importance")
    model = split_model(dense, architecture, scores, torch.ones(50, dtype=torch.long))
    if routing == "sentence_gate":
        for block in (block for layer in model.bert.encoder.layer for block in layer.ffn):
            block.router.weight.data.zero_()  # then every expert has the probability 1 / 4
    with torch.no_grad():
        actual, expected = model(**inputs(batch())).logits, dense(**inputs(batch())).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_orders_of_channels() -> None:
    dense = bert()
    importance, inverse = (channel_scores(dense, [batch()], order) for order in ("importance", "inverse"))
    random, again, other = (channel_scores(dense, [], "random", seed) for seed in (0, 0, 1))
    for layer in range(2):
        assert torch.equal(importance[layer][0], -inverse[layer][0])
        assert torch.equal(random[layer][0], again[layer][0]) and not torch.equal(random[layer][0], other[layer][0])
    weights = split_model(dense, mixture_architecture(dense.config, 2, width=8, shared=8), importance).state_dict()
    first = importance[0][0].argsort(descending=True)[:8]
    expected = from_teacher(dense, stack=1).state_dict()["bert.encoder.layer.0.ffn.0.expand.weight"][first]
    assert torch.equal(weights["bert.encoder.layer.0.ffn.0.expand.weight"][1], expected)


def test_moebert_of_bert_base() -> None:
    config = bert(num_hidden_layers=2, hidden_size=24, intermediate_size=3072).config
    architecture = mixture_architecture(config, 4)
    genes = architecture.ffns[0]
    assert (genes.inner(architecture.base), genes.shared_channels(architecture.base)) == (768, 512)
    with pytest.raises(ArchitectureError, match="= 1,152 channels each, not 2,048"):
        mixture_architecture(config, 4, width=2048, shared=512)
