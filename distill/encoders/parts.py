"""The parts of models and of their weights, as their families say."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from distill.encoders.family import family_of
from distill.encoders.student.anatomy import Family
from distill.encoders.student.attention import NoSelfAttention


def selected(
    family: Family, weights: Mapping[str, Tensor], prefix: str, indices: Mapping[str, Tensor], block: int = 0
) -> dict[str, Tensor]:
    """The tensors of a layer that have a dimension of channels or of heads, with only some of the channels or heads.

    Args:
        prefix: what stands before the name in the layer, with the number of the layer.
        indices: by `CHANNELS` or `HEADS`, the indices of what is kept along that dimension, in their new order; for
            heads those of all their channels.
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


def attends(layer: nn.Module, family: Family) -> bool:
    """Whether a layer has attention heads."""
    try:
        return not isinstance(layer.get_submodule(family.self_attention), NoSelfAttention)
    except AttributeError:  # it is left out
        return False


def fused_path(family: Family, path: str) -> str:
    """The path in a layer of the linear map that computes the one at `path`: in an encoder, one for several maps."""
    fused = {} if family.students_of else family.fused
    return next((whole for whole, maps in fused.items() if path in maps), path)


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


# What a layer gets beside its hidden states: arguments by place and by name.
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class _Reached(Exception):
    """The last layer is reached of which the arguments are wanted."""


def layer_inputs(model: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, list[Arguments]]:
    """The hidden states (B, T, width) with which a model calls its lowest layer, and all other arguments of each layer.
    Where these are the same for all layers, none of them runs.
    """
    hidden: list[Tensor] = []
    found: list[Arguments] = []
    layers = encoder_layers(model)
    last = len(layers) if family_of(model).layer_types else 1

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden_BTD, *others = args if args else (kwargs.pop("hidden_states"),)
        hidden.append(hidden_BTD)
        found.append((tuple(others), kwargs))
        if len(found) == last:
            raise _Reached

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers[:last]]
    try:
        model.base_model(**model_inputs(model, batch))
    except _Reached:
        return hidden[0], found if last > 1 else found * len(layers)
    finally:
        for hook in hooks:
            hook.remove()
    raise AssertionError("the model did not call its layers")
