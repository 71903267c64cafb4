"""Compensated weights against direct least squares in float64, on what the finished candidate computes."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch.nn.functional import gelu

from search_spaces import Experts, FFNGraph
from supernet.compensation.calibration import calibrate
from supernet.compensation.compensate import compensate
from supernet.compensation.ridge import affine_change
from supernet.module_inputs import module_inputs
from tests.supernet.compensation.test_attention import with_layers
from tests.supernet.compensation.test_compensate import BATCHES, candidate, supernet, uniform
from tests.supernet.compensation.test_ridge import least_squares
from tests.tiny import batch, inputs


def map_of(linear: Any, *expert: int) -> np.ndarray:
    """Weight and bias of a linear layer, or of one of its experts, as `ridge` has them."""
    weight = linear.weight.detach()[expert]
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()[expert]
    return torch.cat((weight.t(), bias[None])).double().numpy()


def applied(found: np.ndarray, x: np.ndarray) -> np.ndarray:
    return x @ found[:-1] + found[-1]


@pytest.mark.parametrize(("blocks", "bias"), [(2, True), (2, False), (1, True)])
@torch.no_grad()
def test_all_maps_are_solved_for_on_the_candidates_own_inputs(
    blocks: int, bias: bool, accelerator: Accelerator
) -> None:
    """In every layer: the attention, and two blocks, one or none; and its last LayerNorm, if the reference has another
    number of blocks. What any of them reads depends on all below.
    """
    whole, architecture = supernet(stack=2), with_layers((2, 2), (1, 1), (3, 0))
    reference = supernet(stack=blocks)
    calibration = calibrate(reference, BATCHES, accelerator, attentions=True)
    states = [reference(**given, output_hidden_states=True).hidden_states for given in map(inputs, BATCHES)]
    masks = [given["attention_mask"].bool() for given in BATCHES]
    model, sliced = (candidate(whole, architecture) for _ in range(2))
    for layer in model.bert.encoder.layer if not bias else ():
        for linear in (layer.attention.output.dense, *(block.project for block in layer.ffn)):
            linear.bias = None
    compensate(model, calibration, accelerator)
    maps: list[Any] = []  # each with what it is added to, as it was, and the target
    norms: list[Any] = []
    for i, (layer, before) in enumerate(zip(model.bert.encoder.layer, sliced.bert.encoder.layer, strict=True)):
        output = torch.cat([of_batch[i + 1][mask] for of_batch, mask in zip(states, masks, strict=True)])
        sums = calibration.sums[i]
        maps.append((layer, layer.attention.output.dense, before.attention.output.dense, calibration.attention_sums[i]))
        for j, (block, old) in enumerate(zip(layer.ffn, before.ffn, strict=True)):
            maps.append((block, block.project, old.project, sums[j] if j < len(sums) else output))
        last, old = ([of.attention.output, *of.ffn][-1].LayerNorm for of in (layer, before))
        norms += [(last, old, output)] if len(layer.ffn) != blocks else []
    held = calibration.held_out_N
    read = module_inputs(model, [module for part in maps for module in part[:2]], BATCHES)
    for number, (_, linear, start, target) in enumerate(maps):
        x, h = (tensor.double().numpy() for tensor in read[2 * number : 2 * number + 2])
        wanted = target.double().numpy() - x
        found = least_squares(h, wanted, map_of(start)[:-1], held.numpy(), np.ones(len(h)), bias)
        np.testing.assert_allclose(applied(map_of(linear), h), applied(found, h), atol=1e-3 * wanted.std())
    for (norm, start, target), sum_ND in zip(
        norms, module_inputs(model, [norm for norm, *_ in norms], BATCHES), strict=True
    ):
        factor_D, shift_D = affine_change(start(sum_ND), target, held)
        torch.testing.assert_close(norm(sum_ND), factor_D * start(sum_ND) + shift_D, rtol=1e-3, atol=1e-3)
        assert not torch.equal(norm.weight, start.weight)


def gauss_newton(
    h: np.ndarray, wanted: np.ndarray, found: np.ndarray, solve: Callable[[np.ndarray], np.ndarray], gate: np.ndarray
) -> np.ndarray:
    """The map with which gate * tanh(map(h)) is closest to what is wanted: at most eight steps, each of which solves
    for a linear layer with one curvature per channel; halved if they fail, until one brings less than a hundredth.
    """
    scale = 1.0
    for _ in range(8):
        output = gate * np.tanh(applied(found, h))
        error, slope = ((wanted - output) ** 2).sum(), gate * (1 - np.tanh(applied(found, h)) ** 2)
        step = slope * (wanted - output) / (slope**2).mean(axis=0)
        proposed = solve(applied(found, h) + scale * step)
        reduced = ((wanted - gate * np.tanh(applied(proposed, h))) ** 2).sum()
        if reduced >= error:
            scale /= 2
            continue
        found = proposed
        if reduced > 0.99 * error:
            break
    return found


@pytest.mark.parametrize(
    "experts",
    [
        Experts(count=2, routing="token_gate", shared=Fraction(1, 4)),
        Experts(count=4, routing="token_gate", shared=Fraction(1, 4), top_k=2),
        Experts(count=2, routing="sentence_gate", shared=Fraction(1, 4)),
        Experts(count=2, routing="hash", shared=Fraction(1, 4), capacity=Fraction(1)),
        Experts(count=3, routing="balanced_hash", shared=Fraction(1, 4), top_k=2),
        Experts(count=2, routing="token_gate", shared=Fraction(1)),
        None,
    ],
    ids=str,
)
@pytest.mark.parametrize("formula", ["project(gelu(expand(x)))", "tanh(project(relu(expand(x))))"])
@torch.no_grad()
def test_experts_are_solved_for_with_their_gates(
    experts: Experts | None, formula: str, accelerator: Accelerator
) -> None:
    """What each adds to its tokens is its gate times its output. If others add to the same tokens, twice in turn."""
    whole, given = supernet(), batch(80, 12)
    # In two batches, of which the first ends within five sentences, whose last is held out.
    batches = [{name: tensor[part] for name, tensor in given.items()} for part in (slice(42), slice(42, None))]
    calibration = calibrate(whole, batches, accelerator)
    genes: dict[str, Any] = {} if experts is None else {"experts": experts}
    model = candidate(whole, uniform(graph=FFNGraph.parse(formula), expansion=Fraction(1, 4), **genes))
    layer = model.bert.encoder.layer[0]
    block = layer.ffn[0]
    router = layer.router if block.router is None else block.router
    routings: list[Any] = []
    if router is not None:
        router.register_forward_hook(lambda module, inputs, routing: routings.append(routing))
        if hasattr(router, "weight"):  # so that all experts get tokens, with very different probabilities
            mean_D = module_inputs(model, [block], [given])[0].mean(dim=0)
            weight_ED = torch.randn(router.weight.shape, generator=torch.Generator().manual_seed(1))
            router.weight.copy_(weight_ED - (weight_ED @ mean_D)[:, None] * mean_D / mean_D.square().sum())
            routings.clear()
    x_ND = module_inputs(model, [block], [given])[0]
    numbers = given["attention_mask"].flatten().cumsum(0) - 1
    if router is None:
        slots = [(slice(None), np.ones(len(x_ND)))]
        starts, expanded = [map_of(block.project)], [map_of(block.expand)]
    else:
        dispatch, weight_S = routings[0].dispatch, routings[0].weight_S
        tokens_S, gates_S = numbers[dispatch.token_S], torch.ones(len(dispatch.token_S))
        gates_S = gates_S if weight_S is None else weight_S
        if dispatch.real_S is not None:
            tokens_S, gates_S = tokens_S[dispatch.real_S], gates_S[dispatch.real_S]
        parts = [tensor.split(list(dispatch.counts)) for tensor in (tokens_S, gates_S.double())]
        slots = [(tokens.numpy(), gates.numpy()) for tokens, gates in zip(*parts, strict=True)]
        starts, expanded = (
            [map_of(linear, e) for e in range(experts.count)] for linear in (block.project, block.expand)
        )
    compensate(model, calibration, accelerator)

    x, held = x_ND.double().numpy(), (given["attention_mask"].nonzero()[:, 0] % 5 == 4).numpy()
    ends = formula.startswith("project")
    activate = (lambda a: gelu(torch.tensor(a), approximate=block.gelu_form).numpy()) if ends else lambda a: a.clip(0)
    after = (lambda a: a) if ends else np.tanh
    features = [activate(applied(map_, x[tokens])) for map_, (tokens, _) in zip(expanded, slots, strict=True)]
    solved = list(starts)

    def total(maps: list[np.ndarray]) -> np.ndarray:
        result = x.copy()
        for map_, h, (tokens, gates) in zip(maps, features, slots, strict=True):
            result[tokens] += gates[:, None] * after(applied(map_, h))
        return result

    target = calibration.sums[0][0].double().numpy()
    for _ in range(1 if experts is None or experts.top_k == 1 else 2):
        for e, (tokens, gates) in enumerate(slots):
            h, gate = features[e], gates[:, None]
            wanted = (target - total(solved))[tokens] + gate * after(applied(solved[e], h))

            def solve(y: np.ndarray, e: int = e, h: np.ndarray = h) -> np.ndarray:
                tokens, gates = slots[e]
                return least_squares(h, y, starts[e][:-1], held[tokens], gates**2)

            solved[e] = solve(wanted / gate) if ends else gauss_newton(h, wanted, solved[e], solve, gate)
    found = [map_of(block.project, *([] if router is None else [e])) for e in range(len(slots))]
    np.testing.assert_allclose(total(found), total(solved), atol=1e-3 * (target - x).std())


@pytest.mark.parametrize("part", ["sums", "attention_sums"])
@pytest.mark.parametrize("error", [0.8e-4, 1.2e-4])
def test_only_what_has_no_error_is_left_as_it_is(part: str, error: float, accelerator: Accelerator) -> None:
    """A mean squared error of 1e-4 of the target's mean square is none."""
    whole = supernet()
    calibration = calibrate(whole, BATCHES, accelerator, attentions=True)
    # The error of s as an approximation of s / (1 - e) is e times the latter.
    first, *others = getattr(calibration, part)
    scaled = tuple(sum_ND / (1 - error**0.5) for sum_ND in first) if part == "sums" else first / (1 - error**0.5)
    model = candidate(whole, uniform())
    layer = model.bert.encoder.layer[0]
    linear = layer.ffn[0].project if part == "sums" else layer.attention.output.dense
    before = linear.weight.clone()
    compensate(model, replace(calibration, **{part: (scaled, *others)}), accelerator)
    assert torch.equal(linear.weight, before) == (error < 1e-4)
