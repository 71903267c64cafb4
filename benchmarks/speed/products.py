"""The matrix products of a computation, and how long they take by themselves."""

import time
from collections import Counter
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# The operators that multiply matrices, and the place of the first factor among their arguments.
PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
# The shapes of the factors, (N, K) and (K, M) or with a leading B, and their type.
Product = tuple[torch.Size, torch.Size, torch.dtype]


class Recorder(TorchDispatchMode):
    """A context that counts the matrix products computed in it, those of backward passes too."""

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
    """Floating-point operations of these products: two for each multiply-accumulate."""
    return sum(2 * left.numel() * right[-1] * times for (left, right, _), times in counts.items())


def seconds(counts: Counter[Product], device: torch.device, repeats: int = 5) -> float:
    """The time that these products take one after the other, each the median of `repeats` runs on operands of its own,
    after one run that does not count.
    """
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    total = 0.0
    for (left, right, dtype), times in counts.items():
        a, b = (torch.randn(shape, device=device).to(dtype) for shape in (left, right))
        durations = []
        for _ in range(repeats + 1):
            wait()
            started = time.perf_counter()
            a @ b
            wait()
            durations.append(time.perf_counter() - started)
        total += times * median(durations[1:])
    return total
