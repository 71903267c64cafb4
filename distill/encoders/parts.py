"""The parts of models and of their weights, as their families say."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from distill.encoders.family import family_of
from distill.encoders.student.families import Family


def selected(
    family: Family, weights: Mapping[str, Tensor], prefix: str, indices: Mapping[str, Tensor], block: int = 0
) -> dict[str, Tensor]:
    """The tensors of a layer that have a dimension of channels or of heads, with only some of the channels or heads.

    Args:
        prefix: what stands before the name in the layer, with the number of the layer.
        indices: by `CHANNELS` or `HEADS`, the indices of what is kept along that dimension, in their new order.
        block: the number of the block, in a student.
    """
    return {
        prefix + name: weights[prefix + name].index_select(dimension, indices[unit].to(weights[prefix + name].device))
        for name, (unit, dimension) in family.slices(block).items()
        if unit in indices and prefix + name in weights
    }


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context with the model in eval mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def encoder_layers(model: Any) -> list[Any]:
    """The layers of a model with any head, the lowest first."""
    return list(model.base_model.get_submodule(family_of(model.config).layers))


def part(layer: nn.Module, path: str) -> Any:
    """The module at a path in a layer."""
    return layer.get_submodule(path)


def has_part(layer: nn.Module, path: str) -> bool:
    """Whether there is a module at this path; a student's attention without heads has no linear maps."""
    try:
        layer.get_submodule(path)
    except AttributeError:
        return False
    return True


def model_inputs(model: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a batch that a model, or a model with this configuration, takes; the others are for losses."""
    config = getattr(model, "config", model)
    return {name: batch[name] for name in family_of(config).inputs(config) if name in batch}


def output_layer(model: Any) -> str:
    """The name of the linear map to the outputs of a model with a head for labels: the last one outside of the base
    model.
    """
    encoder = {id(module) for module in model.base_model.modules()}
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and id(m) not in encoder]
    return names[-1]


def word_head(model: Any) -> nn.Module:
    """What maps hidden states to logits of words, in a masked language model."""
    return nn.Sequential(*map(model.get_submodule, family_of(model).word_head))


@dataclass(frozen=True)
class LayerInput:
    """The arguments of a layer: its hidden states (B, T, width), and all others, which are the same for all layers."""

    hidden_BTD: Tensor
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _Reached(Exception):
    """The lowest layer is reached."""


def lowest_input(model: Any, batch: Mapping[str, Tensor]) -> LayerInput:
    """The arguments with which a model calls its lowest layer, which does not run."""
    found: list[LayerInput] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden_BTD, *others = args if args else (kwargs.pop("hidden_states"),)
        found.append(LayerInput(hidden_BTD, tuple(others), kwargs))
        raise _Reached

    hook = encoder_layers(model)[0].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model.base_model(**model_inputs(model, batch))
    except _Reached:
        return found[0]
    finally:
        hook.remove()
    raise AssertionError("the model has no layers")
