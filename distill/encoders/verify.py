"""Tests that a loaded encoder is what its family says, on one small batch."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from distill.encoders.family import FamilyError, family_of
from distill.encoders.parts import encoder_layers, evaluating, part, selected
from distill.encoders.student.anatomy import CHANNELS, HEADS, Family
from distill.encoders.student.attention import select_position_biases

# The largest difference between hidden states, relative to the largest of them.
TOLERANCE = 1e-4
# The channels that the slice test keeps.
KEPT = 5


class _StandIn(nn.Module):
    """What stands in for an FFN in the replace test: it computes project(act(expand(x))), or with a gate
    project(act(expand(x)) * gate(x)), from the parts that the family names.

    Args:
        weights: those of the layer, with fused ones separated.
    """

    def __init__(self, layer: nn.Module, family: Family, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.parts = [part(layer, path) for path in (str(family.activation), family.project)]
        self.maps = [
            (weights[f"{path}.weight"], weights.get(f"{path}.bias")) for path in (family.expand, family.gate) if path
        ]

    def forward(self, x: Tensor) -> Tensor:
        activation, project = self.parts
        inner, *gate = (functional.linear(x, *of_map) for of_map in self.maps)
        result: Tensor = project(activation(inner) * gate[0] if gate else activation(inner))
        return result


@torch.no_grad()
def verify(model: Any, name: str) -> None:
    """Check the family of a model with dense layers. It is unchanged afterwards.

    *Slice*: with only a few of its channels, or one of its heads, every layer computes what it does when the weights of
    the others are zero. *Replace*: another module that computes the same as the FFN can take its place.

    Args:
        name: the model's name, for the error.

    Raises:
        FamilyError: a test fails.
    """
    try:
        with evaluating(model):
            for label, actual, expected in (_slice(model, CHANNELS), _slice(model, HEADS), _replace(model)):
                difference, scale = float((actual - expected).abs().max()), float(expected.abs().max())
                # Weights that overflow are no fault of the structure; what needs finite states says so.
                if math.isfinite(scale) and not difference <= TOLERANCE * scale:
                    raise FamilyError(f"{label}: hidden states differ by {difference:.2g}")
    except (FamilyError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        raise FamilyError(
            f"the model {name!r} is not built like other encoders of type {model.config.model_type!r}, so it is not "
            f"supported ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from None


def _run(model: Any, weights: dict[str, Tensor]) -> Tensor:
    """The last hidden states of two short sentences, with some weights of the base model replaced."""
    config = model.config
    count = min(6, family_of(config).positions(config))
    ids_BT = torch.arange(2 * count, device=model.device).view(2, count) * 7 % config.vocab_size
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, count // 2 :] = 0
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
    states: Tensor = functional_call(model.base_model, weights, kwargs=inputs, tie_weights=False).last_hidden_state
    return states[mask_BT.bool()].float()


def _slice(model: Any, unit: str) -> tuple[str, Tensor, Tensor]:
    family, config = family_of(model), model.config
    size = KEPT if unit == CHANNELS else family.size(config, "width") // family.size(config, "heads")
    weights = family.separated(dict(model.base_model.named_parameters()))
    prefix = family.prefix(weights)
    sliced: dict[str, Tensor] = {}
    zeroed: dict[str, Tensor] = {}
    length = family.size(config, "inner") if unit == CHANNELS else family.size(config, "width")
    for number in range(family.size(config, "depth")):
        # Another head in each layer, or a few channels.
        first = size * (number % max(1, length // size))
        kept = torch.arange(first, min(length, first + size), device=model.device)
        sliced |= selected(family, weights, f"{prefix}{number}.", {unit: kept})
        for name, (of, dimension) in family.slices().items():
            if of == unit and dimension:
                tensor = weights[f"{prefix}{number}.{name}"]
                zeros = torch.zeros_like(tensor)
                zeroed[f"{prefix}{number}.{name}"] = zeros.index_copy(dimension, kept, tensor[:, kept])
    expected = _run(model, zeroed)
    with _single_heads(model) if unit == HEADS else nullcontext():
        return f"with some of its {unit}", _run(model, family.joined(sliced, torch.cat)), expected


@contextmanager
def _single_heads(model: Any) -> Iterator[None]:
    """A context in which every attention has one head, by its attributes."""
    family, config = family_of(model), model.config
    width, heads = (family.size(config, name) for name in ("width", "heads"))
    sizes = {family.heads_attribute: 1, "all_head_size": width // heads}
    inner = [part(layer, family.self_attention) for layer in encoder_layers(model)]
    before = [{name: getattr(module, name) for name in sizes if hasattr(module, name)} for module in inner]
    hooks = []
    for number, (module, names) in enumerate(zip(inner, before, strict=True)):
        for name in names:
            setattr(module, name, sizes[name])
        if family.shares_position_biases:
            only = SimpleNamespace(kept_heads={number: [number % heads]})
            hooks.append(module.register_forward_pre_hook(partial(select_position_biases, only, number)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, names in zip(inner, before, strict=True):
            for name, value in names.items():
                setattr(module, name, value)


def _replace(model: Any) -> tuple[str, Tensor, Tensor]:
    family = family_of(model)
    paths = (family.ffn,) if family.gate else (family.expand, str(family.activation), family.project)
    weights = family.separated(dict(model.base_model.named_parameters()))
    prefix = family.prefix(weights)
    expected = _run(model, {})
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    try:
        for number, layer in enumerate(encoder_layers(model)):
            before = f"{prefix}{number}."
            of_layer = {name.removeprefix(before): one for name, one in weights.items() if name.startswith(before)}
            stand_in = _StandIn(layer, family, of_layer)
            for path, module in zip(paths, (stand_in, nn.Identity(), nn.Identity()), strict=False):
                replaced.append((layer, path, part(layer, path)))
                layer.set_submodule(path, module)
        actual = _run(model, {})
    finally:
        for layer, path, module in replaced:
            layer.set_submodule(path, module)
    return "with its FFN replaced", actual, expected
