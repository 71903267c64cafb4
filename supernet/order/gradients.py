"""Values inside a model on batches of text, and the gradients of a loss with respect to them."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.encoders.parts import evaluating
from distill.objectives.outputs import Batch

# (model, batch) -> the sum of the losses of a batch's samples; a mean would weight samples by the size of their batch.
Loss = Callable[[nn.Module, Batch], Tensor]
INPUT, OUTPUT = "input", "output"
Key = TypeVar("Key", bound=Hashable)


def gradients(
    model: PreTrainedModel, batches: Iterable[Batch], loss: Loss, places: Mapping[Key, tuple[nn.Module, str]]
) -> Iterator[tuple[Batch, dict[Key, tuple[Tensor, Tensor | None]]]]:
    """Yields each batch, on the model's device, with the values at these places, in the order of computation, and the
    gradients of the loss with respect to them; None where the loss does not depend on the value.

    The model runs in eval mode, with one backward pass per batch.

    Args:
        places: key -> a module, and `INPUT` for its first input or `OUTPUT` for its output.

    Yields:
        The batch, and key -> (value, gradient).
    """
    values: dict[Key, Tensor] = {}

    def keep(key: Key) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor | None = None) -> None:
            values[key] = arguments[0] if output is None else output

        return hook

    hooks = [
        module.register_forward_pre_hook(keep(key)) if end == INPUT else module.register_forward_hook(keep(key))
        for key, (module, end) in places.items()
    ]
    try:
        with evaluating(model):
            for batch in batches:
                batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
                total = loss(model, batch)
                of_values = torch.autograd.grad(total, list(values.values()), allow_unused=True)
                yield batch, dict(zip(values, zip(values.values(), of_values, strict=True), strict=True))
    finally:
        for hook in hooks:
            hook.remove()
