"""How long models take on this device, measured in turn so that a busy machine treats them alike."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import quantiles

import torch
from torch import nn

from distill.outputs import Batch


@dataclass(frozen=True)
class Latency:
    """Quartiles of one forward pass in seconds."""

    lower: float
    median: float
    upper: float


@torch.inference_mode()
def latencies(models: Mapping[str, nn.Module], batch: Batch, rounds: int = 30) -> dict[str, Latency]:
    """Time a float32 forward pass of every model on `batch`, round after round, after two rounds to warm up."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    cuda = inputs["input_ids"].is_cuda
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        model.eval()
    for round_number in range(rounds + 2):
        for name, model in models.items():
            begun = time.perf_counter()
            model(**inputs)
            if cuda:
                torch.cuda.synchronize()
            if round_number >= 2:
                seconds[name].append(time.perf_counter() - begun)
    return {name: Latency(*quantiles(values, n=4)) for name, values in seconds.items()}
