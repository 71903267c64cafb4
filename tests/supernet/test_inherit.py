"""Inheritance is slicing: everything equals what it came from, and nothing is shared."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from search_spaces import GELU, Architecture, FFNGraph, Genes
from search_spaces.cost import project_width
from supernet.build import HEADS, build, from_scratch, full_architecture, load_weights
from supernet.inherit import inherit
from tests.tiny import BASE, architectures, batch, inputs, shaken

STACK = 3
GEGLU = FFNGraph.parse("project(mul(gelu(expand(x)),gate(x)))")


def supernet(**changes: object) -> torch.nn.Module:
    return shaken(from_scratch(replace(BASE, **changes), STACK)).eval()


@torch.no_grad()
def logits(model: torch.nn.Module) -> Tensor:
    return model(**inputs(batch())).logits


@pytest.mark.parametrize("embedding", [None, 7])
def test_the_full_architecture_is_the_supernet(embedding: int | None) -> None:
    whole = supernet(embedding=embedding)
    base = replace(BASE, embedding=embedding)
    candidate = build(full_architecture(base, GELU, STACK)).eval()
    load_weights(candidate, inherit(whole.state_dict(), full_architecture(base, GELU, STACK)))
    assert torch.equal(logits(candidate), logits(whole))


@pytest.mark.parametrize("mismatch", ["narrow", "wide"])
def test_random_architectures_take_leading_slices(mismatch: str) -> None:
    weights = supernet(mismatch=mismatch).state_dict()
    before = {name: tensor.clone() for name, tensor in weights.items()}
    places = {tensor.untyped_storage().data_ptr() for tensor in weights.values()}
    for architecture in architectures(40, replace(BASE, mismatch=mismatch)):
        taken = inherit(weights, architecture)
        assert places.isdisjoint(tensor.untyped_storage().data_ptr() for tensor in taken.values())

        expected = {name: tensor for name, tensor in weights.items() if ".ffn." not in name}
        for layer, genes in enumerate(architecture.layers):
            for block in range(genes.stack):
                prefix = f"bert.encoder.layer.{layer}.ffn.{block}."
                inner, projected = genes.inner(BASE), project_width(architecture.base, genes)
                expected[prefix + "expand.weight"] = weights[prefix + "expand.weight"][:inner]
                expected[prefix + "expand.bias"] = weights[prefix + "expand.bias"][:inner]
                expected[prefix + "project.weight"] = weights[prefix + "project.weight"][:, :projected]
                for whole in ("project.bias", "LayerNorm.weight", "LayerNorm.bias"):
                    expected[prefix + whole] = weights[prefix + whole]
        assert taken.keys() == expected.keys()
        assert all(torch.equal(taken[name], expected[name]) for name in expected)

        candidate = build(architecture).eval()
        load_weights(candidate, taken)
        assert torch.isfinite(logits(candidate)).all()
        for parameter in candidate.parameters():
            parameter.data.zero_()
    assert all(torch.equal(weights[name], before[name]) for name in weights)


@pytest.mark.parametrize("head", HEADS)
def test_every_head(head: str) -> None:
    whole = build(full_architecture(BASE, GELU, STACK), head)
    architecture = next(architectures(1))
    load_weights(build(architecture, head), inherit(whole.state_dict(), architecture))


def test_a_narrower_candidate_computes_with_the_leading_neurons() -> None:
    """The same as the supernet with the other neurons' outgoing weights at zero."""
    whole = supernet()
    architecture = Architecture.uniform(BASE, stack=STACK, expansion=Fraction(1, 4))
    candidate = build(architecture).eval()
    load_weights(candidate, inherit(whole.state_dict(), architecture))
    for layer in whole.base_model.encoder.layer:
        for block in layer.ffn:
            block.project.weight.data[:, 12:] = 0
    torch.testing.assert_close(logits(candidate), logits(whole), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("expansion", [Fraction(1), Fraction(1, 4)])
def test_a_gate_that_the_supernet_lacks_is_the_constant_one(expansion: Fraction) -> None:
    weights = supernet().state_dict()
    results, taken = {}, {}
    for graph in (GELU, GEGLU):
        architecture = Architecture.uniform(BASE, graph=graph, stack=2, expansion=expansion)
        candidate = build(architecture).eval()
        taken[graph] = inherit(weights, architecture)
        load_weights(candidate, taken[graph])
        results[graph] = logits(candidate)
    assert torch.equal(results[GEGLU], results[GELU])

    gates = {name: taken[GEGLU].pop(name) for name in list(taken[GEGLU]) if ".gate." in name}
    inner = int(48 * expansion)
    assert len(gates) == 3 * 2 * 2
    for name, tensor in gates.items():
        assert torch.equal(tensor, torch.zeros(inner, 24) if name.endswith("weight") else torch.ones(inner))
    assert len({tensor.untyped_storage().data_ptr() for tensor in gates.values()}) == len(gates)
    assert taken[GEGLU].keys() == taken[GELU].keys()
    assert all(torch.equal(tensor, taken[GEGLU][name]) for name, tensor in taken[GELU].items())


def test_a_gate_that_starts_as_one_learns() -> None:
    architecture = Architecture.uniform(BASE, graph=GEGLU)
    candidate = build(architecture)
    load_weights(candidate, inherit(supernet().state_dict(), architecture))
    candidate(**batch(labels=2)).loss.backward()
    for layer in candidate.base_model.encoder.layer:
        assert layer.ffn[0].gate.weight.grad.abs().max() > 0


def test_gates_of_the_supernet_are_sliced_where_the_candidate_has_one() -> None:
    whole = shaken(build(full_architecture(BASE, GEGLU, STACK))).eval()
    weights = whole.state_dict()
    full = build(full_architecture(BASE, GEGLU, STACK)).eval()
    load_weights(full, inherit(weights, full_architecture(BASE, GEGLU, STACK)))
    assert torch.equal(logits(full), logits(whole))

    other = FFNGraph.parse("project(add(gate(x),mul(expand(x),x)))")
    layers = (Genes(GEGLU, 2, Fraction(1, 4)), Genes(GELU, 3, Fraction(1, 2)), Genes(other, 1, Fraction(3, 4)))
    architecture = Architecture(BASE, layers)
    taken = inherit(weights, architecture)
    load_weights(build(architecture), taken)
    for layer, genes in enumerate(layers):
        for block in range(STACK):
            prefix = f"bert.encoder.layer.{layer}.ffn.{block}."
            for name in ("gate.weight", "gate.bias"):
                if genes.graph == GELU or block >= genes.stack:
                    assert prefix + name not in taken
                    continue
                tensor = taken[prefix + name]
                assert torch.equal(tensor, weights[prefix + name][: genes.inner(BASE)])
                assert tensor.untyped_storage().data_ptr() != weights[prefix + name].untyped_storage().data_ptr()
    with pytest.raises(ValueError, match=r"gate\.weight has 48 channels; the architecture needs 49"):
        inherit(
            {name: tensor for name, tensor in weights.items() if ".expand." not in name},
            Architecture.uniform(replace(BASE, inner=49), graph=GEGLU),
        )


def test_too_small_supernets() -> None:
    weights = supernet().state_dict()
    with pytest.raises(ValueError, match=r"layers\[0\]\.stack is 4; the supernet has 3 blocks there"):
        inherit(weights, Architecture.uniform(BASE, stack=4))
    with pytest.raises(
        ValueError, match=r"ffn\.0\.expand\.weight has 48 channels; the architecture needs 49"
    ):
        inherit(weights, Architecture.uniform(replace(BASE, inner=49)))
    with pytest.raises(ValueError, match=r"layers\[3\]\.stack is 1; the supernet has 0 blocks there"):
        inherit(weights, Architecture.uniform(replace(BASE, depth=4)))
    with pytest.raises(ValueError, match="the supernet has a layer 2; the architecture has 2 layers"):
        inherit(weights, Architecture.uniform(replace(BASE, depth=2)))
