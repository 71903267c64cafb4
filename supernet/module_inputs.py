"""What modules of a model receive on batches of text."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.encoders.parts import evaluating, model_inputs
from distill.objectives.outputs import Batch


@torch.no_grad()
def module_inputs(
    model: PreTrainedModel,
    modules: Sequence[nn.Module],
    batches: Iterable[Batch],
    precision: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[Tensor]:
    """The first inputs (N, D) of modules of the encoder, on all tokens without padding, in float32 on the CPU.

    The model runs in eval mode.

    Args:
        precision: returns the context in which the model runs, such as `Accelerator.autocast`.
    """
    received: list[list[Tensor]] = [[] for _ in modules]
    valid_BT = torch.empty(0)

    def keep(inputs: list[Tensor]) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            inputs.append(arguments[0][valid_BT].float().cpu())

        return hook

    hooks = [module.register_forward_pre_hook(keep(inputs)) for module, inputs in zip(modules, received, strict=True)]
    try:
        with evaluating(model), precision():
            for batch in batches:
                inputs = {name: tensor.to(model.device) for name, tensor in model_inputs(model, batch).items()}
                valid_BT = inputs["attention_mask"].bool()
                model.base_model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [torch.cat(received.pop(0)) for _ in modules]  # the parts of one at a time are in memory twice
