"""Fewer experts: nothing changes but the tokens of those that go."""

from fractions import Fraction

import pytest
import torch

from distill.training.evaluation import Load, expert_load
from distill.training.loop import make_accelerator
from search_spaces import DENSE, Architecture, Experts, FFNGraph
from supernet.build import build, load_weights
from supernet.experts.fuse import unused, without
from tests.tiny import BASE, batch, inputs, shaken

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


def mixture(routing: str, count: int = 4, top_k: int = 1) -> tuple[Architecture, torch.nn.Module]:
    architecture = Architecture.uniform(BASE, stack=2, expansion=THIRD, experts=Experts(count, HALF, routing, top_k))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = shaken(build(architecture, labels=3))
    return architecture, model.eval()


def loads_of(model: torch.nn.Module) -> list[Load]:
    return expert_load(model, [batch(), batch(seed=1)], accelerator=make_accelerator("cpu"))


def rebuilt(weights: dict, architecture: Architecture) -> torch.nn.Module:
    model = build(architecture, labels=3).eval()
    load_weights(model, weights)
    return model


def test_the_load_counts_what_the_routers_choose() -> None:
    _, model = mixture("hash")
    loads = loads_of(model)
    assert [(load.layer, load.part) for load in loads] == [(0, "ffn"), (1, "ffn"), (2, "ffn")]
    for load in loads:
        table = model.bert.encoder.layer[load.layer].router.table
        ids = torch.cat([given["input_ids"][given["attention_mask"].bool()] for given in (batch(), batch(seed=1))])
        counts = torch.bincount(table[ids].long(), minlength=4)
        assert load.shares == pytest.approx((counts / counts.sum()).tolist())


def test_gates_of_every_block_have_their_load() -> None:
    _, model = mixture("token_gate", top_k=2)
    loads = loads_of(model)
    assert [load.part for load in loads] == ["ffn", "ffn 2"] * 3
    assert all(sum(load.shares) == pytest.approx(1) for load in loads)


def test_unused_is_below_its_part_of_an_equal_share_in_all_blocks() -> None:
    architecture, _ = mixture("token_gate")
    loads = [
        Load(0, "ffn", (0.7, 0.01, 0.28, 0.01)),
        Load(0, "ffn 2", (0.7, 0.2, 0.09, 0.01)),
        Load(1, "ffn", (0.0, 0.0, 1.0, 0.0)),
        Load(2, "ffn", (0.25, 0.25, 0.25, 0.25)),
        Load(2, "attention", (1.0, 0.0)),
    ]
    assert unused(architecture, loads, Fraction(1, 4)) == {0: [3], 1: [0, 1, 3]}
    assert unused(architecture, loads, Fraction(4)) == {0: [1, 2, 3], 1: [0, 1, 3], 2: [1, 2, 3]}


@pytest.mark.parametrize("fuse", [False, True])
def test_an_expert_without_tokens_goes_unnoticed_behind_a_hash(fuse: bool) -> None:
    architecture, model = mixture("hash")
    for layer in model.bert.encoder.layer:
        layer.router.table[layer.router.table == 2] = 0
    loads = loads_of(model)
    weights, smaller = without(model.state_dict(), architecture, loads, {0: [2], 2: [2]}, fuse)
    assert [genes.experts.count for genes in smaller.layers] == [3, 4, 3]
    with torch.no_grad():
        expected = model(**inputs(batch())).logits
        torch.testing.assert_close(rebuilt(weights, smaller)(**inputs(batch())).logits, expected)


@pytest.mark.parametrize("routing", ["hash", "token_gate"])
def test_one_expert_that_stays_is_a_dense_layer(routing: str) -> None:
    architecture, model = mixture(routing)
    weights, smaller = without(model.state_dict(), architecture, loads_of(model), {1: [0, 1, 3]}, fuse=False)
    assert smaller.layers[1].experts == DENSE
    kept = "bert.encoder.layer.1.ffn.1.expand.weight"
    assert torch.equal(weights[kept], model.state_dict()[kept][2])
    assert torch.isfinite(rebuilt(weights, smaller)(**inputs(batch())).logits).all()


def test_fusing_means_by_load_and_sends_tokens_to_the_heir() -> None:
    architecture, model = mixture("hash", count=2)
    name, table = "bert.encoder.layer.0.ffn.0.project.weight", "bert.encoder.layer.0.router.table"
    before = model.state_dict()
    loads = [Load(layer, "ffn", (0.75, 0.25)) for layer in range(3)]
    weights, smaller = without(before, architecture, loads, {0: [1]}, fuse=True)
    torch.testing.assert_close(weights[name], 0.75 * before[name][0] + 0.25 * before[name][1])
    assert table not in weights and smaller.layers[0].experts == DENSE
    dropped, _ = without(before, architecture, loads, {0: [1]}, fuse=False)
    assert torch.equal(dropped[name], before[name][0])


def test_the_heir_is_the_expert_most_alike() -> None:
    architecture, model = mixture("hash")
    weights = model.state_dict()
    for name, tensor in weights.items():
        if ".layer.0.ffn." in name and "LayerNorm" not in name:
            tensor[1] = tensor[3] + 0.01 * tensor[1]
    found, _ = without(weights, architecture, loads_of(model), {0: [3]}, fuse=False)
    table = "bert.encoder.layer.0.router.table"
    assert torch.equal(found[table][weights[table] == 3], torch.ones_like(found[table][weights[table] == 3]))
    for old, new in ((0, 0), (1, 1), (2, 2)):
        assert (found[table][weights[table] == old] == new).all()


def test_no_more_are_chosen_than_stay() -> None:
    architecture, model = mixture("token_gate", top_k=3)
    weights, smaller = without(model.state_dict(), architecture, loads_of(model), {0: [0, 1]}, fuse=True)
    assert smaller.layers[0].experts.top_k == 2
    assert torch.isfinite(rebuilt(weights, smaller)(**inputs(batch())).logits).all()


@pytest.mark.parametrize("going", [[4], [-1], [0, 1, 2, 3]])
def test_experts_that_are_not_there_and_the_last_cannot_go(going: list[int]) -> None:
    architecture, model = mixture("hash")
    with pytest.raises(ValueError, match=r"layers\[1\] has experts 0 to 3, of which one stays"):
        without(model.state_dict(), architecture, loads_of(model), {1: going}, fuse=False)


def test_behind_a_gate_project_must_be_last() -> None:
    graph = FFNGraph.parse("tanh(project(gelu(expand(x))))")
    architecture = Architecture.uniform(BASE, graph, expansion=THIRD, experts=Experts(4, HALF, "token_gate"))
    model = build(architecture, labels=3)
    with pytest.raises(ValueError, match="`project` is not the last operation"):
        without(model.state_dict(), architecture, loads_of(model), {0: [1]}, fuse=False)
