"""What the training of a candidate holds in memory, from the sizes of its tensors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from nas.evaluation.trained import TrainedEvaluator
from search_spaces.architecture import Architecture


@contextmanager
def kept_for_backward(known: set[int]) -> Iterator[dict[int, int]]:
    """Bytes, by address, of the memory that the forward passes of the block keep for their backward passes.

    A storage counts whole where only a view of it is kept, and once where several operations keep it.

    Args:
        known: addresses of memory that is left out, such as that of the weights.
    """
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def size(tensors: Sequence[Tensor]) -> int:
    """Bytes of these tensors together."""
    return sum(tensor.nbytes for tensor in tensors)


def training_memory(evaluator: TrainedEvaluator, architecture: Architecture) -> dict[str, int]:
    """Bytes that the training of a candidate holds at a time, by what they are for: its weights, the gradients and the
    two moments of those that are trained, and what is kept for the backward pass of its largest batch.
    """
    sizes: dict[str, int] = {}
    known: set[int] = set()
    of_steps: list[int] = []
    model = evaluator.student(architecture)
    with kept_for_backward(known) as kept:

        def after_step(step: int) -> None:
            parameters = list(model.parameters())
            known.update(parameter.untyped_storage().data_ptr() for parameter in parameters)
            of_steps.append(sum(kept.values()))
            kept.clear()
            sizes["weights"] = size(parameters)
            sizes["gradients"] = size([parameter for parameter in parameters if parameter.requires_grad])

        evaluator.train(model, evaluator.training_phases, evaluator.config.seed, after_step)
    return sizes | {"moments": 2 * sizes["gradients"], "kept for the backward pass": max(of_steps)}
