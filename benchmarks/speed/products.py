"""The matrix products of a computation, and how long they take by themselves."""

import time
from collections import Counter
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
# Shapes of the factors, (N, K) and (K, M) or with a leading B, and their type.
Product = tuple[torch.Size, torch.Size, torch.dtype]


class Recorder(TorchDispatchMode):
    """Counts the products that are computed meanwhile, of a backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        first = PRODUCTS.get(func._schema.name)
        if first is not None:
            left, right = args[first : first + 2]
            self.counts[left.shape, right.shape, left.dtype] += 1
        return func(*args, **(kwargs or {}))


def operations(counts: Counter[Product]) -> int:
    """Floating-point operations, two for each multiplication and addition."""
    return sum(2 * left.numel() * right[-1] * times for (left, right, _), times in counts.items())


def seconds(counts: Counter[Product], device: torch.device, repeats: int = 5) -> float:
    """What these products take one after the other, each the median of `repeats` on operands of its own, after one
    that does not count.
    """
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    total = 0.0
    for (left, right, dtype), times in counts.items():
        a, b = (torch.randn(shape, device=device).to(dtype) for shape in (left, right))
        found = []
        for _ in range(repeats + 1):
            wait()
            begun = time.perf_counter()
            a @ b
            wait()
            found.append(time.perf_counter() - begun)
        total += times * median(found[1:])
    return total
