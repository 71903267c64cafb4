"""Dropout whose masks cost a CPU little: torch draws 53 random bits for each element there, which takes as long as the
products of matrices beside it.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# An element's chance is a multiple of 1 / LEVELS, and four elements share a random number of 64 bits.
LEVELS = 2**16


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """As `torch.nn.functional.dropout`. On a CPU the chance is `p` rounded to 16 bits, and the rest is divided by what
    is left of it, so that the mean is kept.
    """
    if x.device.type != "cpu":
        return F.dropout(x, p, training)
    dropped = round(p * LEVELS)
    if not training or not dropped:
        return x
    if dropped == LEVELS:
        return x * 0.0
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    levels = bits.view(torch.int16)[: x.numel()].view(x.shape)
    # The comparison writes ones and zeros of x's own type.
    noise = torch.ge(levels, dropped - LEVELS // 2, out=torch.empty(x.shape, dtype=x.dtype))
    return x * noise.mul_(LEVELS / (LEVELS - dropped))


@contextlib.contextmanager
def quick_dropout(model: nn.Module) -> Iterator[None]:
    """The model's `nn.Dropout` modules draw their masks so meanwhile."""
    layers = [module for module in model.modules() if type(module) is nn.Dropout]

    def forward_of(layer: nn.Dropout) -> Callable[[Tensor], Tensor]:
        return lambda x: dropout(x, layer.p, layer.training)

    for layer in layers:
        vars(layer)["forward"] = forward_of(layer)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]
