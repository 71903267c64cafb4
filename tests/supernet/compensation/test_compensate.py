"""Compensated candidates: exact where nothing is lost, and never worse than a slice where something is."""

import math
from dataclasses import replace
from fractions import Fraction
from statistics import median

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from search_spaces import FFN, GELU, Architecture, Base, Experts, FFNGraph
from supernet.build import build
from supernet.compensation.calibration import Calibration, calibrate
from supernet.compensation.compensate import compensate
from supernet.inherit import inherit
from supernet.module_inputs import module_inputs
from tests.tiny import BASE, batch, graphs, inputs, shaken

HALF = Fraction(1, 2)
BATCHES = [batch(16, 12, seed=seed) for seed in range(8)]
NEW = batch(8, 10, seed=99)


def supernet(graph: FFNGraph = GELU, stack: int = 1, base: Base = BASE) -> nn.Module:
    torch.manual_seed(0)
    return shaken(build(Architecture.uniform(base, graph, stack))).eval()


@torch.no_grad()
def redundant(model: nn.Module) -> nn.Module:
    """The second half of the inner channels repeats the first, with other weights in `project`."""
    for layer in model.bert.encoder.layer:
        for block in layer.ffn:
            half = len(block.expand.bias) // 2
            for module in (block.expand, *([block.gate] if hasattr(block, "gate") else [])):
                module.weight[half:], module.bias[half:] = module.weight[:half].clone(), module.bias[:half].clone()
    return model


@torch.no_grad()
def logits(model: nn.Module, given: dict[str, Tensor] = NEW) -> Tensor:
    return model.eval()(**inputs(given)).logits


def candidate(whole: nn.Module, architecture: Architecture) -> nn.Module:
    frequencies = torch.arange(BASE.vocabulary)
    return build(architecture, weights=inherit(whole.state_dict(), architecture, frequencies)).eval()


def uniform(base: Base = BASE, **genes: object) -> Architecture:
    layer = FFN(**({"graph": GELU} | genes))  # type: ignore[arg-type]
    return Architecture.of_ffns(base, (layer,) * base.depth)


def errors(model: nn.Module, calibration: Calibration) -> list[float]:
    """The mean squared difference from the supernet's sums, of every block."""
    norms = [block.LayerNorm for layer in model.bert.encoder.layer for block in layer.ffn]
    sums = module_inputs(model, norms, calibration.batches)
    targets = [sum_ND for layer in calibration.sums for sum_ND in layer]
    return [float(((actual - target) ** 2).mean()) for actual, target in zip(sums, targets, strict=True)]


@pytest.mark.parametrize("formula", ["project(gelu(expand(x)))", "project(mul(gelu(expand(x)),gate(x)))"])
@pytest.mark.parametrize("stack", [1, 2])
def test_nothing_is_lost_where_channels_repeat_each_other(formula: str, stack: int, accelerator: Accelerator) -> None:
    """Half of the channels, and equal logits on sentences that were not seen."""
    graph = FFNGraph.parse(formula)
    whole = redundant(supernet(graph, stack))
    model = candidate(whole, uniform(graph=graph, stack=stack, expansion=HALF))
    assert float((logits(model) - logits(whole)).abs().max()) > 0.05
    compensate(model, calibrate(whole, BATCHES, accelerator), accelerator)
    torch.testing.assert_close(logits(model), logits(whole), rtol=0, atol=5e-3)


def test_a_reference_with_fewer_blocks(accelerator: Accelerator) -> None:
    """Of a supernet of two blocks per layer whose lowest ones are the reference's, one block loses nothing."""
    reference, whole = supernet(), supernet(stack=2)
    whole.load_state_dict(whole.state_dict() | dict(reference.state_dict()))
    lowest = candidate(whole, uniform())
    compensate(lowest, calibrate(reference, BATCHES, accelerator), accelerator)
    assert torch.equal(logits(lowest), logits(reference))


@pytest.mark.parametrize("mismatch", ["narrow", "wide"])
def test_every_graph_gets_closer_to_the_supernet(mismatch: str, accelerator: Accelerator) -> None:
    """Graphs of the space, most of which do something after `project`: in the first layer, whose inputs are the same,
    none has a larger error than the slice, and most a much smaller one.
    """
    base = replace(BASE, mismatch=mismatch)
    whole = supernet(base=base)
    calibration = calibrate(whole, BATCHES, accelerator)
    after, ratios = 0, []
    for graph in graphs(25, seed=3):
        after += not str(graph).startswith("project(")
        model = candidate(whole, uniform(base, graph=graph, expansion=HALF))
        before = errors(model, calibration)
        compensate(model, calibration, accelerator)
        ratios.append(errors(model, calibration)[0] / before[0])
        assert bool(torch.isfinite(logits(model)).all())
    assert after > 15
    assert max(ratios) < 1 + 1e-5 and median(ratios) < 0.75


@pytest.mark.parametrize("stack", [1, 2])
@torch.no_grad()
def test_nothing_is_lost_without_an_ffn_that_is_zero(stack: int, accelerator: Accelerator) -> None:
    """If all channels of a LayerNorm have one weight and one bias, the next LayerNorm gets the same normalized states,
    and one of the two can do the work of both.
    """
    whole = supernet(stack=stack)
    for layer in whole.bert.encoder.layer:
        for block in layer.ffn:
            block.project.weight.zero_()
            block.project.bias.zero_()
        for norm in (layer.attention.output.LayerNorm, *(block.LayerNorm for block in layer.ffn[:-1])):
            norm.weight.fill_(0.7)
            norm.bias.fill_(0.3)
    calibration = calibrate(whole, BATCHES, accelerator)
    model = candidate(whole, uniform(stack=0))
    assert float((logits(model) - logits(whole)).abs().max()) > 0.1
    compensate(model, calibration, accelerator)
    torch.testing.assert_close(logits(model), logits(whole), rtol=1e-3, atol=1e-3)


def distances(model: nn.Module, whole: nn.Module, given: dict[str, Tensor] = NEW) -> list[float]:
    """The mean squared difference of every layer's output from the supernet's."""
    mask_BT = given["attention_mask"].bool()
    with torch.no_grad():
        states = [one.eval()(**inputs(given), output_hidden_states=True).hidden_states[1:] for one in (model, whole)]
    return [float(((a - b)[mask_BT] ** 2).mean()) for a, b in zip(*states, strict=True)]


def test_few_sentences_change_layers_without_ffns_little(accelerator: Accelerator) -> None:
    whole = supernet()
    model = candidate(whole, uniform(stack=0))
    before = distances(model, whole)
    compensate(model, calibrate(whole, [batch(2, 2, seed=1)], accelerator), accelerator)
    after = distances(model, whole)
    assert all(math.isfinite(value) for value in after)
    assert after[0] < 1.2 * before[0]


def test_few_tokens_and_idle_experts(accelerator: Accelerator) -> None:
    """Fewer tokens than channels, and experts that get no token, or one that is held out, which keep their slices."""
    whole = supernet()
    few = batch(5, 3, seed=1)
    model = candidate(whole, uniform(expansion=HALF))
    compensate(model, calibrate(whole, [few], accelerator), accelerator)
    assert bool(torch.isfinite(logits(model)).all())
    model = candidate(whole, uniform(expansion=Fraction(1, 8), experts=Experts(count=8, routing="hash")))
    project = model.bert.encoder.layer[0].ffn[0].project
    weights, biases = project.weight.clone(), project.bias.clone()
    table = model.bert.encoder.layer[0].router.table
    *learned_from, held_out = zip(few["input_ids"], few["attention_mask"].sum(dim=1), strict=True)
    used = {int(expert) for ids_T, length in learned_from for expert in table[ids_T[:length]]}
    idle = [expert for expert in range(8) if expert not in used]
    assert len(idle) > 1 and held_out[1] == 1
    held_out[0][0] = (table == idle[0]).nonzero()[-1]
    compensate(model, calibrate(whole, [few], accelerator), accelerator)
    for expert in range(8):
        assert torch.equal(project.bias[expert], biases[expert]) == (expert in idle)
        assert torch.equal(project.weight[expert], weights[expert]) or expert not in idle
    assert bool(torch.isfinite(logits(model)).all())
