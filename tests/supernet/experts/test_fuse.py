"""Fewer experts: nothing changes but for the tokens of those that are removed."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from distill.training.evaluation import Load, expert_load
from distill.training.loop import make_accelerator
from search_spaces import DENSE, Architecture, Experts, FFNGraph
from supernet.build import build
from supernet.experts import ExpertsError
from supernet.experts.fuse import remove_experts, untouched_experts, unused_experts
from tests.tiny import BASE, batch, inputs, shaken

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


def mixture(routing: str, count: int = 4, top_k: int = 1) -> tuple[Architecture, torch.nn.Module]:
    architecture = Architecture.uniform(BASE, stack=2, expansion=THIRD, experts=Experts(count, HALF, routing, top_k))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = shaken(build(architecture, num_labels=3))
    return architecture, model.eval()


def loads_of(model: torch.nn.Module) -> list[Load]:
    return expert_load(model, [batch(), batch(seed=1)], accelerator=make_accelerator("cpu"))


def rebuilt(weights: dict, architecture: Architecture) -> torch.nn.Module:
    model = build(architecture, num_labels=3, weights=weights).eval()
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
    assert unused_experts(architecture, loads, Fraction(1, 4)) == {0: [3], 1: [0, 1, 3]}
    assert unused_experts(architecture, loads, Fraction(4)) == {0: [1, 2, 3], 1: [0, 1, 3], 2: [1, 2, 3]}


@pytest.mark.parametrize("fuse", [False, True])
def test_an_expert_without_tokens_goes_unnoticed_behind_a_hash(fuse: bool) -> None:
    architecture, model = mixture("hash")
    for layer in model.bert.encoder.layer:
        layer.router.table[layer.router.table == 2] = 0
    loads = loads_of(model)
    weights, smaller = remove_experts(model.state_dict(), architecture, loads, {0: [2], 2: [2]}, fuse)
    assert [ffn.experts.count for ffn in smaller.ffns] == [3, 4, 3]
    with torch.no_grad():
        expected = model(**inputs(batch())).logits
        torch.testing.assert_close(rebuilt(weights, smaller)(**inputs(batch())).logits, expected)


@pytest.mark.parametrize("routing", ["hash", "token_gate"])
def test_a_layer_with_one_remaining_expert_is_dense(routing: str) -> None:
    architecture, model = mixture(routing)
    weights, smaller = remove_experts(model.state_dict(), architecture, loads_of(model), {1: [0, 1, 3]}, fuse=False)
    assert smaller.ffns[1].experts == DENSE
    kept = "bert.encoder.layer.1.ffn.1.expand.weight"
    assert torch.equal(weights[kept], model.state_dict()[kept][2])
    assert torch.isfinite(rebuilt(weights, smaller)(**inputs(batch())).logits).all()


def test_fusing_means_by_load_and_sends_tokens_to_the_heir() -> None:
    architecture, model = mixture("hash", count=2)
    name, table = "bert.encoder.layer.0.ffn.0.project.weight", "bert.encoder.layer.0.router.table"
    before = model.state_dict()
    loads = [Load(layer, "ffn", (0.75, 0.25)) for layer in range(3)]
    weights, smaller = remove_experts(before, architecture, loads, {0: [1]}, fuse=True)
    torch.testing.assert_close(weights[name], 0.75 * before[name][0] + 0.25 * before[name][1])
    assert table not in weights and smaller.ffns[0].experts == DENSE
    dropped, _ = remove_experts(before, architecture, loads, {0: [1]}, fuse=False)
    assert torch.equal(dropped[name], before[name][0])


def test_the_heir_is_the_most_similar_expert() -> None:
    architecture, model = mixture("hash")
    weights = model.state_dict()
    for name, tensor in weights.items():
        if ".layer.0.ffn." in name and "LayerNorm" not in name:
            tensor[1] = tensor[3] + 0.01 * tensor[1]
    fewer, _ = remove_experts(weights, architecture, loads_of(model), {0: [3]}, fuse=False)
    table = "bert.encoder.layer.0.router.table"
    assert torch.equal(fewer[table][weights[table] == 3], torch.ones_like(fewer[table][weights[table] == 3]))
    for old, new in ((0, 0), (1, 1), (2, 2)):
        assert (fewer[table][weights[table] == old] == new).all()


def test_no_more_experts_are_chosen_than_remain() -> None:
    architecture, model = mixture("token_gate", top_k=3)
    weights, smaller = remove_experts(model.state_dict(), architecture, loads_of(model), {0: [0, 1]}, fuse=True)
    assert smaller.ffns[0].experts.top_k == 2
    assert torch.isfinite(rebuilt(weights, smaller)(**inputs(batch())).logits).all()


@pytest.mark.parametrize("removed", [[4], [-1], [0, 1, 2, 3]])
def test_unknown_experts_and_all_experts_cannot_be_removed(removed: list[int]) -> None:
    architecture, model = mixture("hash")
    with pytest.raises(ExpertsError, match=r"layers\[1\] has experts 0 to 3, of which at least one must remain"):
        remove_experts(model.state_dict(), architecture, loads_of(model), {1: removed}, fuse=False)
    architecture, model = prediction_layers()
    with pytest.raises(ExpertsError, match="the head has experts 0 to 3, of which at least two must remain; cannot re"):
        remove_experts(model.state_dict(), architecture, loads_of(model), {-1: [*removed, 1, 2]}, fuse=False)


def test_experts_of_attention_and_head_are_named_and_stay() -> None:
    """Also where their loads are lower than those of any FFN."""
    both = {"attention_experts": 2, "head_experts": 3}
    architecture = Architecture.uniform(BASE, expansion=THIRD, experts=Experts(2, HALF), **both)
    loads = [Load(-1, "head", (1.0, 0.0, 0.0)), Load(0, "attention", (1.0, 0.0)), Load(0, "ffn", (0.5, 0.5))]
    assert unused_experts(architecture, loads, Fraction(1, 2)) == {}
    assert untouched_experts(architecture) == "2 of every attention and 3 of the head"
    assert untouched_experts(architecture, "head") == "2 of every attention and those of the feed-forward networks"
    assert untouched_experts(Architecture.uniform(BASE)) == ""


@pytest.mark.parametrize("gate_scale", ["relative", "probability"])
def test_outputs_behind_a_gate_of_relative_scale_are_scaled(gate_scale: str) -> None:
    """By 4 / 3: the gate itself multiplies by 3 / 4 of what it did."""
    base, gate = replace(BASE, gate_scale=gate_scale), Experts(4, HALF, "token_gate")
    architecture = Architecture.uniform(base, expansion=THIRD, experts=gate)
    before = build(architecture, num_labels=3).state_dict()
    loads = [Load(layer, "ffn", (0.25,) * 4) for layer in range(3)]
    after, smaller = remove_experts(before, architecture, loads, {1: [3]}, fuse=False)
    assert smaller.base == base and smaller.ffns[1].experts.count == 3
    name = "bert.encoder.layer.1.ffn.0.project.weight"
    scale = {"relative": 4 / 3, "probability": 1}[gate_scale]
    torch.testing.assert_close(after[name], scale * before[name][:3], rtol=1e-6, atol=0)
    ends = FFNGraph.parse("tanh(project(gelu(expand(x))))")
    tanh = Architecture.uniform(base, ends, expansion=THIRD, experts=gate)
    if gate_scale == "probability":  # nothing to scale
        remove_experts(build(tanh, num_labels=3).state_dict(), tanh, loads, {1: [3]}, fuse=False)


def prediction_layers(count: int = 4, gate_scale: str = "relative") -> tuple[Architecture, torch.nn.Module]:
    """A dense encoder whose head has this many prediction layers."""
    architecture = Architecture.uniform(replace(BASE, gate_scale=gate_scale), head_experts=count)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = shaken(build(architecture, num_labels=3), scale=1.0)
    return architecture, model.eval()


def test_unused_prediction_layers() -> None:
    """Two remain, those with the highest loads; of equal loads the first."""
    architecture, _ = prediction_layers()
    for shares, share, expected in (
        ((0.7, 0.01, 0.28, 0.01), Fraction(1, 4), {-1: [1, 3]}),
        ((0.02, 0.9, 0.04, 0.04), Fraction(1), {-1: [0, 3]}),
        ((0.0, 0.0, 0.0, 1.0), Fraction(4), {-1: [1, 2]}),
        ((0.25, 0.25, 0.25, 0.25), Fraction(1), {}),
    ):
        assert unused_experts(architecture, [Load(-1, "head", shares)], share, "head") == expected


@torch.no_grad()
def head_by_hand(model: torch.nn.Module, kept: dict[int, tuple[torch.Tensor, ...]], scale: float) -> torch.Tensor:
    """Equations 4 and 5 with the gate's rows and the prediction layers of these experts only."""
    rows = []
    for x in model.bert(**inputs(batch(12))).pooler_output:
        probabilities = torch.softmax(torch.stack([model.classifier.router.weight[e] @ x for e in kept]), dim=0)
        chosen = int(probabilities.argmax())
        inner, inner_bias, outer, outer_bias = list(kept.values())[chosen]
        output = outer @ torch.softmax(inner @ x + inner_bias, dim=0) + outer_bias
        rows.append(scale * probabilities[chosen] * output)
    return torch.stack(rows)


@torch.no_grad()
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("gate_scale", ["relative", "probability"])
def test_prediction_layers_are_dropped_or_fused(gate_scale: str, fuse: bool) -> None:
    architecture, model = prediction_layers(gate_scale=gate_scale)
    head = model.classifier
    tensors = (head.inner.weight, head.inner.bias, head.outer.weight, head.outer.bias)
    for tensor in tensors:  # the last is like the first
        tensor[3] = tensor[0] + 0.01 * tensor[3]
    share = (0.4, 0.3, 0.2, 0.1)
    weights, smaller = remove_experts(model.state_dict(), architecture, [Load(-1, "head", share)], {-1: [3]}, fuse=fuse)
    assert smaller == Architecture.uniform(replace(BASE, gate_scale=gate_scale), head_experts=3)
    kept = {expert: tuple(tensor[expert] for tensor in tensors) for expert in range(3)}
    if fuse:
        kept[0] = tuple((0.4 * tensor[0] + 0.1 * tensor[3]) / 0.5 for tensor in tensors)
    # Where the gate multiplies by 3 p after 4 p, the outputs make up for it.
    expected = head_by_hand(model, kept, scale=4.0 if gate_scale == "relative" else 1.0)
    torch.testing.assert_close(rebuilt(weights, smaller)(**inputs(batch(12))).logits, expected)
    for name, tensor in model.state_dict().items():
        if not name.startswith("classifier."):
            assert torch.equal(weights[name], tensor)
