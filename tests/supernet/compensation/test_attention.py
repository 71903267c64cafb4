"""Candidates with fewer heads or without whole layers: exact where nothing is lost, and closer to the supernet where
something is.
"""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from search_spaces import FFN, GELU, Architecture, Attention, Layer
from supernet.compensation.calibration import Calibration, calibrate
from supernet.compensation.compensate import compensate
from supernet.compensation.ridge import CompensationError, affine_change
from tests.supernet.compensation.test_compensate import BATCHES, candidate, logits, supernet
from tests.tiny import BASE, inputs

HALF = Fraction(1, 2)
SIZE = BASE.width // BASE.heads
LEFT_OUT = Layer(Attention(0), FFN(stack=0))


def with_layers(*sizes: tuple[int, int]) -> Architecture:
    """The architecture whose layers have these numbers of heads and of blocks, of half the channels."""
    return Architecture(BASE, tuple(Layer(Attention(heads), FFN(GELU, stack, HALF)) for heads, stack in sizes))


def of_attentions(whole: nn.Module, accelerator: Accelerator) -> Calibration:
    return calibrate(whole, BATCHES, accelerator, attentions=True)


def compensated(whole: nn.Module, architecture: Architecture, calibration: Calibration) -> tuple[nn.Module, set[str]]:
    """The candidate, and the names of the weights that are not the slice's."""
    model = candidate(whole, architecture)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    compensate(model.train(), calibration, Accelerator(cpu=True))  # in eval mode all the same
    return model.eval(), {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


@torch.no_grad()
def attended(model: Any, layer: int, batches: Sequence[dict[str, Tensor]]) -> list[Tensor]:
    """The inputs of an attention and of its output projection, and the output of its LayerNorm, (N, ...)."""
    own, kept = model.bert.encoder.layer[layer], []
    hooks = [own.register_forward_pre_hook(lambda _, given: kept.append([given[0]]))]
    hooks.append(own.attention.output.dense.register_forward_pre_hook(lambda _, given: kept[-1].append(given[0])))
    hooks.append(own.attention.output.LayerNorm.register_forward_hook(lambda _, given, out: kept[-1].append(out)))
    for given in batches:
        model.eval()(**inputs(given))
    for hook in hooks:
        hook.remove()
    masks = [given["attention_mask"].bool() for given in batches]
    return [
        torch.cat([part[mask] for part, mask in zip(parts, masks, strict=True)]) for parts in zip(*kept, strict=True)
    ]


@pytest.mark.parametrize("attentions", [False, True])
def test_a_whole_candidate_stays_as_it_is(attentions: bool, accelerator: Accelerator) -> None:
    whole = supernet(stack=2)
    calibration = calibrate(whole, BATCHES, accelerator, attentions)
    assert compensated(whole, Architecture.uniform(BASE, stack=2), calibration)[1] == set()


@torch.no_grad()
def test_nothing_is_lost_where_heads_repeat_each_other(accelerator: Accelerator) -> None:
    """The upper half of the heads repeats the lower half, with other weights in the output projection."""
    whole = supernet()
    for layer in whole.bert.encoder.layer:
        for module in (getattr(layer.attention.self, name) for name in ("query", "key", "value")):
            module.weight[2 * SIZE :], module.bias[2 * SIZE :] = module.weight[: 2 * SIZE], module.bias[: 2 * SIZE]
    architecture = Architecture.uniform(BASE).with_heads([2] * 3)
    assert float((logits(candidate(whole, architecture)) - logits(whole)).abs().max()) > 0.05
    model, changed = compensated(whole, architecture, of_attentions(whole, accelerator))
    torch.testing.assert_close(logits(model), logits(whole), rtol=0, atol=5e-3)
    assert changed <= {
        f"bert.encoder.layer.{layer}.{name}.{kind}"
        for layer in range(3)
        for name in ("attention.output.dense", "ffn.0.project")
        for kind in ("weight", "bias")
    }


@torch.no_grad()
def test_without_heads_bias_and_norm_are_solved_for(accelerator: Accelerator) -> None:
    whole, architecture = supernet(), with_layers((4, 1), (0, 1), (4, 1))
    calibration = of_attentions(whole, accelerator)
    model, changed = compensated(whole, architecture, calibration)
    own = "bert.encoder.layer.1.attention.output"
    assert {name for name in changed if ".layer.1.attention" in name} == {
        f"{own}.dense.bias",
        f"{own}.LayerNorm.weight",
        f"{own}.LayerNorm.bias",
    }
    x, _, output = attended(model, 1, BATCHES)
    attention, fit = model.bert.encoder.layer[1].attention.output, ~calibration.held_out_N
    bias = (calibration.attention_sums[1] - x)[fit].mean(dim=0)
    torch.testing.assert_close(attention.dense.bias, bias, rtol=1e-3, atol=1e-4)
    norm = whole.bert.encoder.layer[1].attention.output.LayerNorm
    before = nn.functional.layer_norm(x + bias, (BASE.width,), norm.weight, norm.bias, norm.eps)
    target = norm(calibration.attention_sums[1])
    factor, shift = affine_change(before, target, calibration.held_out_N)
    torch.testing.assert_close(output, before * factor + shift, rtol=1e-3, atol=1e-3)
    assert float((output - target).square().mean()) < float((before - target).square().mean())


@torch.no_grad()
def test_nothing_is_lost_without_heads_that_say_the_same_of_every_token(accelerator: Accelerator) -> None:
    whole = supernet()
    for layer in whole.bert.encoder.layer:
        layer.attention.self.value.weight.zero_()
    architecture = Architecture.uniform(BASE).with_heads([0] * 3)
    assert float((logits(candidate(whole, architecture)) - logits(whole)).abs().max()) > 0.05
    model, _ = compensated(whole, architecture, of_attentions(whole, accelerator))
    torch.testing.assert_close(logits(model), logits(whole), rtol=1e-3, atol=1e-3)


# What is below a layer that is left out, and the LayerNorm that takes the change.
BELOW = {
    "embeddings": (with_layers((0, 0), (4, 1), (4, 1)), 0, "bert.embeddings.LayerNorm"),
    "block": (with_layers((4, 1), (0, 0), (4, 1)), 1, "bert.encoder.layer.0.ffn.0.LayerNorm"),
    "attention": (with_layers((4, 0), (0, 0), (4, 1)), 1, "bert.encoder.layer.0.attention.output.LayerNorm"),
    "left out": (with_layers((0, 0), (0, 0), (4, 1)), 1, "bert.embeddings.LayerNorm"),
}


@pytest.mark.parametrize("attentions", [False, True])
@pytest.mark.parametrize("below", BELOW)
@torch.no_grad()
def test_a_layer_left_out_changes_the_norm_below_alone(below: str, attentions: bool, accelerator: Accelerator) -> None:
    """By the affine function that brings the states closest to the output of the supernet's layer."""
    architecture, number, norm = BELOW[below]
    whole = supernet()
    calibration = calibrate(whole, BATCHES, accelerator, attentions)
    # Nothing above matters, nor that of the layer below, if that is whole.
    without, _ = compensated(whole, with_layers(*[(4, 1)] * 3), calibration)
    model, changed = compensated(whole, architecture, calibration)
    assert {f"{norm}.weight", f"{norm}.bias"} <= changed
    assert not any(f".layer.{number}." in name for name in changed)
    kept = {name for name in changed if ".project." not in name and ".output.dense." not in name}
    assert kept == {f"{norm}.weight", f"{norm}.bias"}
    if below in ("embeddings", "block"):
        epsilon = whole.config.layer_norm_eps
        masks = [given["attention_mask"].bool() for given in BATCHES]

        def states(of: nn.Module) -> Tensor:
            outputs = [of(**inputs(given), output_hidden_states=True).hidden_states[number] for given in BATCHES]
            return torch.cat([part[mask] for part, mask in zip(outputs, masks, strict=True)])

        before, target = states(without), calibration.output(number, epsilon)
        factor, shift = affine_change(before, target, calibration.held_out_N)
        torch.testing.assert_close(states(model), before * factor + shift, rtol=1e-3, atol=2e-3)


@torch.no_grad()
def test_nothing_is_lost_without_layers_that_only_normalize(accelerator: Accelerator) -> None:
    """If all their LayerNorms but the last have one weight and one bias, the one below can do the work of all."""
    whole = supernet()
    for layer in whole.bert.encoder.layer[1:]:
        for linear in (layer.attention.output.dense, layer.ffn[0].project):
            linear.weight.zero_()
            linear.bias.zero_()
    first, second, third = whole.bert.encoder.layer
    norms = [layer.attention.output.LayerNorm for layer in (second, third)]
    for norm in (first.ffn[0].LayerNorm, second.ffn[0].LayerNorm, *norms):
        norm.weight.fill_(0.7)
        norm.bias.fill_(0.3)
    full = FFN(GELU, 1)
    architecture = Architecture(BASE, (Layer(Attention(4), full), LEFT_OUT, LEFT_OUT))
    assert float((logits(candidate(whole, architecture)) - logits(whole)).abs().max()) > 0.1
    model, changed = compensated(whole, architecture, of_attentions(whole, accelerator))
    torch.testing.assert_close(logits(model), logits(whole), rtol=1e-3, atol=1e-3)
    assert changed == {f"bert.encoder.layer.0.ffn.0.LayerNorm.{kind}" for kind in ("weight", "bias")}


def test_experts_of_attention_keep_their_maps(accelerator: Accelerator) -> None:
    whole = supernet()
    layers = (Layer(Attention(4, 2), FFN(GELU)), Layer(Attention(2), FFN(GELU)), Layer(Attention(4, 2), FFN(GELU)))
    model, changed = compensated(whole, Architecture(BASE, layers), of_attentions(whole, accelerator))
    assert {name for name in changed if ".attention." in name} == {
        f"bert.encoder.layer.1.attention.output.dense.{kind}" for kind in ("weight", "bias")
    }
    assert bool(torch.isfinite(logits(model)).all())


def test_calibrations_are_read_back(tmp_path: Path, accelerator: Accelerator) -> None:
    whole = supernet(stack=2)
    for attentions in (False, True):
        written = calibrate(whole, BATCHES, accelerator, attentions)
        written.save(tmp_path / "calibration.safetensors")
        read = Calibration.load(tmp_path / "calibration.safetensors")
        assert (len(read.attention_sums), len(read.attention_norms)) == ((3, 3) if attentions else (0, 0))
        for name in ("batches", "sums", "norms", "attention_sums", "attention_norms"):
            torch.testing.assert_close(getattr(read, name), getattr(written, name), rtol=0, atol=0)
    # More batches and layers than ten are read in their order, not in that of their names.
    batches, layers, attentions = ([torch.eye(n) for n in range(12)] for _ in range(3))
    many = Calibration(tuple({"input_ids": one} for one in batches), tuple(zip(layers)), (), tuple(attentions))
    many.save(tmp_path / "calibration.safetensors")
    read = Calibration.load(tmp_path / "calibration.safetensors")
    parts = zip(read.batches, read.sums, read.attention_sums, strict=True)
    lengths = [[len(given["input_ids"]), len(of_block), len(sum_ND)] for given, (of_block,), sum_ND in parts]
    assert lengths == [[n] * 3 for n in range(12)]
    whole.bert.encoder.layer[2].attention.output.LayerNorm.eps = 0.5
    _, context, output = attended(whole, 2, BATCHES)
    torch.testing.assert_close(written.attention_output(2, 0.5), output)
    assert len(context) == len(output)


@pytest.mark.parametrize(
    ("sizes", "broken", "place"),
    [
        ([(4, 1)] * 3, "encoder.layer.1.ffn.0.expand.bias", r"layers\[1\], block 0"),
        ([(4, 0)] * 3, "encoder.layer.2.attention.output.LayerNorm.bias", r"layers\[2\], no FFN"),
        ([(2, 1)] * 3, "encoder.layer.1.attention.self.value.bias", r"layers\[1\], attention"),
        ([(0, 1)] * 3, "encoder.layer.0.ffn.0.LayerNorm.bias", r"layers\[1\], attention"),
        ([(4, 1), (0, 0), (4, 1)], "encoder.layer.0.ffn.0.LayerNorm.bias", r"layers\[1\], left out"),
        ([(0, 0), (4, 1), (4, 1)], "embeddings.LayerNorm.bias", r"layers\[0\], left out"),
    ],
)
def test_activations_that_are_not_finite_are_named(
    sizes: list[tuple[int, int]], broken: str, place: str, accelerator: Accelerator
) -> None:
    whole = supernet()
    calibration, model = of_attentions(whole, accelerator), candidate(whole, with_layers(*sizes))
    with torch.no_grad():
        model.bert.get_parameter(broken)[0] = torch.nan
    with pytest.raises(CompensationError, match=f"^{place}: the activations are not finite"):
        compensate(model, calibration, accelerator)


@torch.no_grad()
def test_a_supernet_of_which_one_sum_is_not_finite(accelerator: Accelerator) -> None:
    whole = supernet(stack=2)
    whole.bert.encoder.layer[2].ffn[1].project.bias[0] = torch.inf
    with pytest.raises(CompensationError, match=r"^layers\[2\] of the supernet is not finite"):
        of_attentions(whole, accelerator)
