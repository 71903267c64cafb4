"""Inheritance is slicing: everything equals what it came from, and nothing is shared."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import RobertaConfig

from distill.tasks.types import TASK_TYPES
from search_spaces import (
    FFN,
    GELU,
    PUBLISHED,
    Architecture,
    Attention,
    Base,
    Embedding,
    Experts,
    FFNGraph,
    Layer,
    PredictionHead,
)
from search_spaces.cost import project_width
from search_spaces.routing import ROUTINGS
from supernet.build import build
from supernet.embedding import principal_axes
from supernet.experts.routers import DEVIATION, routing_table
from supernet.inherit import attention_slice, expert_channels, inherit
from tests.search_spaces import strategies
from tests.tiny import BASE, GEGLU, architectures, batch, inputs, shaken

STACK = 3
LEFT_OUT = Layer(Attention(0), FFN(stack=0))


def supernet(**changes: object) -> torch.nn.Module:
    return shaken(build(Architecture.uniform(replace(BASE, **changes), stack=STACK))).eval()


@torch.no_grad()
def logits(model: torch.nn.Module) -> Tensor:
    return model(**inputs(batch())).logits


@pytest.mark.parametrize("embedding", [None, 7])
def test_the_full_architecture_is_the_supernet(embedding: int | None) -> None:
    whole = supernet(embedding=embedding)
    architecture = Architecture.uniform(replace(BASE, embedding=embedding), GELU, STACK)
    candidate = build(architecture, weights=inherit(whole.state_dict(), architecture)).eval()
    assert torch.equal(logits(candidate), logits(whole))


@pytest.mark.parametrize("head", ["none", *TASK_TYPES])
def test_every_head(head: str) -> None:
    whole = build(Architecture.uniform(BASE, GELU, STACK), TASK_TYPES.get(head))
    architecture = next(architectures(1))
    candidate = build(architecture, TASK_TYPES.get(head), weights=inherit(whole.state_dict(), architecture))
    of_head = [name for name in whole.state_dict() if ".encoder." not in name and not name.startswith("encoder.")]
    assert of_head
    for name in of_head:
        assert torch.equal(candidate.state_dict()[name], whole.state_dict()[name])


def test_a_layer_without_an_ffn_inherits_its_attention() -> None:
    """It is the supernet whose layer skips its blocks."""
    whole = supernet()
    layers = (FFN(GELU, STACK), FFN(stack=0), FFN(GELU, STACK))
    architecture = Architecture.of_ffns(BASE, layers)
    candidate = build(architecture, weights=inherit(whole.state_dict(), architecture)).eval()
    empty = Architecture.uniform(BASE, stack=0, attention_experts=2)
    inherited = inherit(whole.state_dict(), empty, seed=3)
    assert not any(".ffn." in name for name in inherited)
    assert inherited["bert.encoder.layer.1.attention.router.weight"].shape == (2, BASE.width)
    build(empty, weights=inherited)
    whole.bert.encoder.layer[1].ffn = torch.nn.ModuleList()
    assert torch.equal(logits(candidate), logits(whole))


def test_a_layer_left_out_inherits_nothing() -> None:
    """It is the supernet that skips the layer; and it is a supernet itself, but not for a layer that is not."""
    whole, full = supernet(), Layer(Attention(4), FFN(GELU, STACK))
    architecture = Architecture(BASE, (full, LEFT_OUT, Layer(Attention(2), FFN(GELU, STACK))))
    inherited = inherit(whole.state_dict(), architecture)
    assert not any(".layer.1." in name for name in inherited)
    assert {name for name in whole.state_dict() if ".layer.1." not in name} == inherited.keys()
    candidate = build(architecture, weights=inherited).eval()
    twin = build(architecture, weights=inherit(inherited, architecture)).eval()
    assert torch.equal(logits(candidate), logits(twin))
    complete = Architecture(BASE, (full, full, architecture.layers[2]))
    expected = build(complete, weights=inherit(whole.state_dict(), complete)).eval()
    expected.bert.encoder.layer[1].forward = lambda hidden_states, *unused, **settings: hidden_states
    assert torch.equal(logits(candidate), logits(expected))
    for layer, reason in (
        (Layer(Attention(2), FFN(stack=0)), r"layers\[1\]\.attention\.heads is above 0; the supernet has none there"),
        (Layer(Attention(0), FFN()), r"layers\[1\]\.ffn\.stack is 1; the supernet has 0 blocks there"),
    ):
        with pytest.raises(ValueError, match=reason):
            inherit(inherited, Architecture(BASE, (full, layer, LEFT_OUT)))


def test_the_attentions_of_a_one_shot_supernet_are_sliced() -> None:
    """To the leading heads or the first experts, and to nothing of a layer that is left out."""
    whole = shaken(build(Architecture.uniform(BASE, stack=STACK, attention_experts=2)))
    layers = (Layer(Attention(4, 2), FFN()), LEFT_OUT, Layer(Attention(1), FFN()))
    others = {name: tensor for name, tensor in whole.state_dict().items() if ".ffn." not in name}
    sliced = attention_slice(others, Architecture(BASE, layers))
    of_layers = [{name for name in sliced if f".layer.{layer}." in name} for layer in range(3)]
    assert [len(names) for names in of_layers] == [11, 0, 10]
    for name, tensor in sliced.items():
        full = others[name]
        if name in of_layers[2] and "LayerNorm" not in name:
            full = full[0]
            if not name.endswith("output.dense.bias"):
                full = full[:, :6] if "output" in name else full[:6]
        assert torch.equal(tensor, full), name


@pytest.mark.parametrize("expansion", [Fraction(1), Fraction(1, 4)])
def test_a_gate_that_the_supernet_lacks_is_the_constant_one(expansion: Fraction) -> None:
    weights = supernet().state_dict()
    results, inherited = {}, {}
    for graph in (GELU, GEGLU):
        architecture = Architecture.uniform(BASE, graph=graph, stack=2, expansion=expansion)
        inherited[graph] = inherit(weights, architecture)
        results[graph] = logits(build(architecture, weights=inherited[graph]).eval())
    assert torch.equal(results[GEGLU], results[GELU])

    gates = {name: inherited[GEGLU].pop(name) for name in list(inherited[GEGLU]) if ".gate." in name}
    inner = int(48 * expansion)
    assert len(gates) == 3 * 2 * 2
    for name, tensor in gates.items():
        assert torch.equal(tensor, torch.zeros(inner, 24) if name.endswith("weight") else torch.ones(inner))
    assert len({tensor.untyped_storage().data_ptr() for tensor in gates.values()}) == len(gates)
    assert inherited[GEGLU].keys() == inherited[GELU].keys()
    assert all(torch.equal(tensor, inherited[GEGLU][name]) for name, tensor in inherited[GELU].items())


@pytest.mark.parametrize(
    ("base", "genes", "message"),
    [
        ({}, {"stack": 4}, r"layers\[0\]\.ffn\.stack is 4; the supernet has 3 blocks there"),
        ({"inner": 49}, {}, r"ffn\.0\.expand\.weight has 48 channels; the architecture needs 49"),
        ({"depth": 2}, {}, "the supernet has a layer 2; the architecture has 2 layers"),
        ({"inner": 96}, {"experts": Experts(4)}, r"expand\.weight has 48 channels; the architecture needs 96"),
        (
            {},
            {"experts": Experts(4, routing="balanced_hash")},
            "shares out the tokens of training data: it needs their",
        ),
    ],
)
def test_too_small_supernets(base: dict[str, int], genes: dict[str, Any], message: str) -> None:
    genes = genes | ({"expansion": Fraction(1, 4)} if "experts" in genes else {})
    with pytest.raises(ValueError, match=message):
        inherit(supernet().state_dict(), Architecture.uniform(replace(BASE, **base), **genes))


FREQUENCIES = torch.arange(50) % 7


def cut(tensor: Tensor, dimension: int, base: Base, ffn: FFN, ends: int) -> Tensor:
    """MoEBERT's rule on a tensor of a dense block: the parts of all experts, cut at `ends` channels."""
    order = list(range(base.inner))
    count, inner, shared = ffn.experts.count, ffn.inner(base), ffn.shared_channels(base)
    parts = []
    for expert in range(count):
        own = (order[:shared] + order[shared:][expert::count])[:inner]
        # Beyond its own an expert with mismatch "wide" passes on channels of x, which have their own places.
        channels = [*own, *range(inner, ends)][:ends]
        parts.append(torch.stack([tensor.select(dimension, channel) for channel in channels], dim=dimension))
    return torch.stack(parts) if count > 1 else parts[0]


def of_experts(weights: dict[str, Tensor], architecture: Architecture) -> dict[str, Tensor | tuple[int, ...]]:
    """What `inherit` is to return; the shapes alone of gates that are drawn."""
    base, expected = architecture.base, {}
    left_out = [f".layer.{number}." for number, layer in enumerate(architecture.layers) if layer.left_out]
    for name, tensor in weights.items():
        if any(part in name for part in left_out):
            continue
        if ".ffn." in name or ".attention." not in name or "LayerNorm" in name:
            expected[name] = tensor
            continue
        attention = architecture.layers[int(name.split(".layer.")[1].split(".")[0])].attention
        size = attention.heads * base.width // base.heads
        if attention.experts > 1:
            expected[name] = torch.stack([tensor] * attention.experts)
        elif name.endswith("output.dense.bias"):
            expected[name] = tensor
        elif size:
            expected[name] = tensor[:, :size] if "output" in name else tensor[:size]
    expected = {name: tensor for name, tensor in expected.items() if ".ffn." not in name}
    for layer, ffn in enumerate(architecture.ffns):
        prefix, experts = f"bert.encoder.layer.{layer}.", ffn.experts
        inner, projected, count = ffn.inner(base), project_width(base, ffn), experts.count
        if (attentions := architecture.layers[layer].attention.experts) > 1:
            expected[prefix + "attention.router.weight"] = (attentions, base.width)
        if count > 1 and not experts.gated:
            expected[prefix + "router.table"] = routing_table(experts, base.vocabulary, layer, FREQUENCIES)
        for block in range(ffn.stack):
            own = f"{prefix}ffn.{block}."
            if experts.gated:
                expected[own + "router.weight"] = (count, base.width)
            for part in ("expand", "gate") if ffn.graph.gated else ("expand",):
                for kind in ("weight", "bias"):
                    name = f"{own}{part}.{kind}"
                    if name in weights:
                        expected[name] = cut(weights[name], 0, base, ffn, inner)
                    else:
                        like = expected[name.replace("gate", "expand")]
                        expected[name] = torch.zeros_like(like) if kind == "weight" else torch.ones_like(like)
            name = own + "project.weight"
            expected[name] = cut(weights[name], 1, base, ffn, projected)
            bias = weights[own + "project.bias"]
            expected[own + "project.bias"] = torch.stack([bias] * count) if count > 1 else bias
            for kind in ("weight", "bias"):
                expected[f"{own}LayerNorm.{kind}"] = weights[f"{own}LayerNorm.{kind}"]
    return expected


def test_moeberts_experts() -> None:
    """Section 4.1: four experts of 768 channels, 512 of them shared; the lower half of the 3072 is not used."""
    moebert = PUBLISHED["moebert"]
    rows = [set(row) for row in expert_channels(moebert.base, moebert.ffns[0]).tolist()]
    assert [len(row) for row in rows] == [768] * 4 and set.union(*rows) == set(range(1536))
    assert all(one & other == set(range(512)) for one, other in combinations(rows, 2))


def check_experts(weights: dict[str, Tensor], architecture: Architecture) -> None:
    addresses = {tensor.untyped_storage().data_ptr() for tensor in weights.values()}
    inherited = inherit(weights, architecture, FREQUENCIES)
    expected = of_experts(weights, architecture)
    assert inherited.keys() == expected.keys()
    gates = []
    for name, wanted in expected.items():
        if isinstance(wanted, tuple):
            assert inherited[name].shape == wanted
            assert 0 < inherited[name].abs().max() < 6 * DEVIATION
            gates.append(inherited[name][0])
        else:
            assert torch.equal(inherited[name], wanted), name
    assert all(not torch.equal(one, other) for number, one in enumerate(gates) for other in gates[:number])
    own = [tensor.untyped_storage().data_ptr() for tensor in inherited.values() if tensor.numel()]
    assert len(set(own)) == len(own)
    assert addresses.isdisjoint(own)

    build(architecture, weights=inherited)


DEEP = {
    (graph, mismatch): shaken(build(Architecture.uniform(replace(BASE, mismatch=mismatch), graph, 4))).state_dict()
    for graph in (GELU, GEGLU)
    for mismatch in ("narrow", "wide")
}


@settings(max_examples=60, deadline=None)
@given(strategies.architectures(), st.sampled_from(list(DEEP)))
def test_any_architecture_takes_leading_slices(architecture: Architecture, kind: tuple[FFNGraph, str]) -> None:
    """Of channels and heads."""
    assert BASE.with_gates_of(architecture.base) == architecture.base
    base = replace(architecture.base, mismatch=kind[1])
    check_experts(DEEP[kind], replace(architecture, base=base, head=PredictionHead(), embedding=Embedding()))


def test_routers_of_the_supernet_lead() -> None:
    """Few experts start with the first rows of what many have learned."""
    weights = supernet().state_dict()
    learned = {
        f"bert.encoder.layer.{layer}.{place}.router.weight": torch.randn(8, BASE.width)
        for layer in range(2)
        for place in ("ffn.0", "ffn.1", "attention")
    }
    gates = Experts(4, routing="token_gate")
    candidate = Architecture.uniform(BASE, GELU, 2, Fraction(1, 8), gates, attention_experts=2)
    inherited = inherit(weights | learned, candidate)
    build(candidate, weights=inherited)
    for name, rows in learned.items():
        assert torch.equal(inherited[name], rows[: 2 if "attention" in name else 4])
        assert inherited[name].untyped_storage().data_ptr() != rows.untyped_storage().data_ptr()
    # The last layer's are drawn; nobody else asks for routers.
    assert inherited["bert.encoder.layer.2.ffn.0.router.weight"].abs().max() < 6 * DEVIATION
    for experts in (Experts(), Experts(4)):
        plain = Architecture.uniform(BASE, stack=2, expansion=Fraction(1, 8), experts=experts)
        own = {name: tensor for name, tensor in learned.items() if "attention" not in name}
        assert inherit(weights | own, plain).keys() == inherit(weights, plain).keys()
    many = Architecture.uniform(BASE, expansion=Fraction(1, 16), experts=Experts(16, routing="token_gate"))
    with pytest.raises(ValueError, match=r"ffn\.0\.router\.weight has 8 .* needs 16"):
        inherit(weights | learned, many)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_copies_compute_what_the_supernet_does(routing: str, top_k: int) -> None:
    """Exactly so with a hash; near it behind gates that have yet to learn, in attention too."""
    whole = supernet()
    experts = Experts(4, Fraction(1), routing, top_k)
    for attention_experts in (1, 3):
        architecture = Architecture.uniform(BASE, stack=STACK, experts=experts, attention_experts=attention_experts)
        candidate = build(architecture, weights=inherit(whole.state_dict(), architecture, FREQUENCIES)).eval()
        indifferent = build(architecture, weights=candidate.state_dict()).eval()
        for name, parameter in indifferent.named_parameters():
            if name.endswith("router.weight"):
                torch.nn.init.zeros_(parameter)
        torch.testing.assert_close(logits(indifferent), logits(whole), rtol=1e-4, atol=1e-5)
        exact = not ROUTINGS[routing].learned and attention_experts == 1
        torch.testing.assert_close(logits(candidate), logits(whole), rtol=1e-4, atol=1e-5 if exact else 0.3)


def test_a_mixture_is_no_supernet() -> None:
    small = {"stack": 1, "expansion": Fraction(1, 4)}
    for experts, attention_experts, name in (
        (Experts(4), 1, r"ffn\.0\.expand\.weight is of 4 experts"),
        (Experts(2, routing="token_gate"), 1, r"ffn\.0\.expand\.weight is of 2 experts"),
        (Experts(), 3, r"attention\.self\.query\.weight is of 3 experts"),
    ):
        several = Architecture.uniform(BASE, experts=experts, attention_experts=attention_experts, **small)
        with pytest.raises(ValueError, match=rf"the supernet must be dense: .*\.layer\.0\.{name}"):
            inherit(build(several).state_dict(), several)


def test_only_routers_and_heads_depend_on_the_seed() -> None:
    layers = [
        FFN(GELU, 1, Fraction(1, 4), experts)
        for experts in (Experts(4), Experts(4, routing="token_gate"), Experts(4, routing="balanced_hash"))
    ]
    architecture = Architecture.of_ffns(BASE, layers, attention_experts=2, head_experts=2)
    weights = supernet().state_dict()
    default, zero, one, again = (inherit(weights, architecture, FREQUENCIES, *seed) for seed in ((), (0,), (1,), (1,)))
    changed = {name for name, tensor in one.items() if not torch.equal(tensor, zero[name])}
    drawn = {"layer.0.router.table", "layer.1.ffn.0.router.weight", "layer.2.router.table"}
    drawn |= {f"layer.{layer}.attention.router.weight" for layer in range(3)}
    head = {f"classifier.{name}.weight" for name in ("router", "inner", "outer")}
    assert changed == {f"bert.encoder.{name}" for name in drawn} | head
    for name, tensor in default.items():
        assert torch.equal(tensor, zero[name]) and torch.equal(one[name], again[name])


def rank_of(template: Any = None, head: str = "classification", rank: int = 8) -> tuple[Any, Architecture]:
    """A full model with uneven words, and its architecture with a word embedding of this rank."""
    whole = shaken(build(Architecture.uniform(BASE), TASK_TYPES[head], template=template)).eval()
    with torch.no_grad():
        whole.get_input_embeddings().weight.mul_(torch.rand(BASE.vocabulary, 1))
    return whole, replace(Architecture.uniform(BASE), embedding=Embedding(rank))


@pytest.mark.parametrize("head", ["classification", "masked_lm"])
@pytest.mark.parametrize("template", [None, RobertaConfig(layer_norm_eps=1e-12, pad_token_id=0)])
@torch.no_grad()
def test_the_words_of_lower_rank_are_a_weighted_svd(head: str, template: Any) -> None:
    """Against numpy's SVD of the words times the roots of their frequencies, which is the best approximation."""
    whole, architecture = rank_of(template, head)
    frequencies = torch.arange(BASE.vocabulary) ** 2
    weights = inherit(whole.state_dict(), architecture, frequencies)
    candidate = build(architecture, TASK_TYPES[head], template=template, weights=weights)
    embedding, words = candidate.eval().get_input_embeddings(), whole.get_input_embeddings().weight
    roots = np.sqrt(frequencies.double().numpy() + 1)[:, None]
    left, values, right = np.linalg.svd(roots * words.double().numpy())
    expected = (left[:, :8] * values[:8]) @ right[:8] / roots
    np.testing.assert_allclose(embedding(torch.arange(BASE.vocabulary)).numpy(), expected, atol=1e-5)
    # The model with these words computes the same, also where they are the output embedding.
    whole.get_input_embeddings().weight.copy_(torch.from_numpy(expected))
    torch.testing.assert_close(logits(candidate), logits(whole), rtol=1e-4, atol=1e-5)
    # Its own words have that rank already, so their best approximation of any higher one is exact.
    again = inherit(candidate.state_dict(), architecture, frequencies)
    assert all(torch.equal(tensor, candidate.state_dict()[name]) for name, tensor in again.items())
    lower = replace(architecture, embedding=Embedding(5))
    of_both = [inherit(model.state_dict(), lower, frequencies) for model in (candidate, whole)]
    pair = [build(lower, TASK_TYPES[head], template=template, weights=weights).eval() for weights in of_both]
    torch.testing.assert_close(logits(pair[0]), logits(pair[1]), rtol=1e-4, atol=1e-5)


def test_all_axes_are_exact() -> None:
    """At the last rank below the width the least of all axes is lost, and no word that does not occur."""
    whole, architecture = rank_of(rank=BASE.width - 1)
    words = whole.get_input_embeddings().weight.detach()
    axes = principal_axes(words, torch.zeros(BASE.vocabulary, dtype=torch.long))
    torch.testing.assert_close(words.double() @ axes @ axes.t(), words.double())
    candidate = build(
        architecture, weights=inherit(whole.state_dict(), architecture, torch.zeros(BASE.vocabulary))
    ).eval()
    lost = candidate.get_input_embeddings()(torch.arange(BASE.vocabulary)) - words
    least = torch.linalg.svdvals(words)[-1]
    torch.testing.assert_close(lost.norm(), least, rtol=1e-3, atol=1e-5)


def test_a_higher_rank_cannot_be_inherited() -> None:
    whole, architecture = rank_of()
    with pytest.raises(ValueError, match=r"embedding\.rank is 8, but .* has full rank, and factorizing it needs token"):
        inherit(whole.state_dict(), architecture)
    low = inherit(whole.state_dict(), architecture, FREQUENCIES)
    for rank, said in ((9, "9"), (None, "the full rank")):
        with pytest.raises(ValueError, match=f"embedding.rank: {said} is above the checkpoint's rank, 8: lower it"):
            inherit(low, replace(architecture, embedding=Embedding(rank)))
