"""Data-parallel training in several processes: distribution of rows, weights and gradients."""

from collections.abc import Iterable

import torch
from accelerate import Accelerator
from torch import nn

from distill.objectives.outputs import Batch


def process_rows(batch: Batch, accelerator: Accelerator) -> Batch:
    """This process's part of a batch's rows, on its device.

    Raises:
        ValueError: there are fewer rows than processes.
    """
    processes, rows = accelerator.num_processes, len(batch["input_ids"])
    if rows < processes:
        raise ValueError(f"a batch of {rows} rows cannot be shared out to {processes} processes: raise batch_size")
    index = accelerator.process_index
    part = slice(index, None, processes)
    if "groups" in batch:  # the rows of a group lie side by side, and are compared with one another
        part = slice(rows * index // processes, rows * (index + 1) // processes)
    return {name: tensor[part].to(accelerator.device) for name, tensor in batch.items()}


def broadcast_weights(modules: Iterable[nn.Module], accelerator: Accelerator) -> None:
    """Copy the weights of the first process to all others."""
    if accelerator.num_processes > 1:
        for module in modules:
            for tensor in module.state_dict().values():
                torch.distributed.broadcast(tensor, 0)


def average_gradients(parameters: Iterable[nn.Parameter], accelerator: Accelerator) -> None:
    """Replace gradients by their means over all processes.

    A gradient that is missing in some processes counts as 0 there, and one that is missing in all stays None. Torch's
    DistributedDataParallel cannot be used because objectives differ in the parameters that receive gradients.
    """
    if accelerator.num_processes == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    present = torch.tensor([float(parameter.grad is not None) for parameter in trained], device=accelerator.device)
    for parameter, processes in zip(trained, accelerator.reduce(present, reduction="sum").tolist(), strict=True):
        if processes:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = accelerator.reduce(gradient, reduction="mean")
