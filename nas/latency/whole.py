"""The latency of whole models.

Models in torch are timed in pieces (`Latency.quiet`), because on a busy device every pass may be interrupted.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles

import torch
from torch import nn

from distill.cpu.allocator import keep_freed_memory
from distill.encoders.parts import model_inputs
from distill.encoders.student.expert_linear import ExpertLinear
from distill.objectives.outputs import Batch
from nas.latency.steps import bounded, finish, lower_quartile

WHOLE_ROUNDS = 30
NO_GROWTH = (
    "the measured latencies do not grow with the size of the models, probably because other processes are running"
)


class TooBusy(RuntimeError):
    """The measured latencies do not grow with the size of the models (`NO_GROWTH`)."""


@dataclass(frozen=True)
class Latency:
    """The seconds of one forward pass: the quartiles, and `quiet`, an estimate of the latency without other load.

    On a busy device every pass may be interrupted somewhere, but most pieces of a pass are not: in torch, `quiet` is
    the sum of the lower quartiles of the times between linear layers. In onnxruntime, it is the lower quartile of the
    thread's CPU time (one thread), or of the wall time (several).
    """

    lower: float
    median: float
    upper: float
    quiet: float


@torch.inference_mode()
def latencies(models: Mapping[str, nn.Module], batch: Batch, rounds: int = WHOLE_ROUNDS) -> dict[str, Latency]:
    """Time a float32 forward pass of every model on `batch` in each of `rounds` rounds (fewer if they take too long).

    In each round a model runs twice and the second pass is timed: the first one refills the processor's caches, which
    the other models have used in the meantime. Afterwards the process no longer returns freed memory to the operating
    system, as in training; otherwise the times of FFNs vary by up to 10 % with the state of the heap.
    """
    keep_freed_memory()
    inputs = {name: model_inputs(model, batch) for name, model in models.items()}
    cuda = batch["input_ids"].is_cuda
    cuts: list[float] = []
    passes: dict[str, list[list[float]]] = {name: [] for name in models}
    # A set, so that a module that several models share gets a single hook.
    parts = {part for model in models.values() for part in model.modules()}
    linear = [part for part in parts if isinstance(part, nn.Linear | ExpertLinear)]
    hooks = [part.register_forward_pre_hook(lambda part, inputs: cuts.append(time.perf_counter())) for part in linear]
    try:
        for model in models.values():
            model.eval()
        for _ in bounded(rounds):
            for name, model in models.items():
                model(**inputs[name])
                finish(cuda)
                cuts.clear()
                begun = time.perf_counter()
                model(**inputs[name])
                finish(cuda)
                passes[name].append([begun, *cuts, time.perf_counter()])
    finally:
        for hook in hooks:
            hook.remove()
    return {name: summary(times) for name, times in passes.items()}


def summary(passes: Sequence[Sequence[float]]) -> Latency:
    """The latency that follows from the time stamps of every pass, in seconds: its start, its cuts and its end."""
    whole = [moments[-1] - moments[0] for moments in passes]
    pieces = zip(*([end - begin for begin, end in pairwise(moments)] for moments in passes), strict=True)
    lower, middle, upper = quantiles(whole, n=4)
    return Latency(lower, middle, upper, quiet=sum(map(lower_quartile, pieces)))


def example(vocabulary: int, batch: int, tokens: int, device: str) -> Batch:
    """A batch of random token ids without padding."""
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(vocabulary, (batch, tokens), generator=generator).to(device)
    return {
        "input_ids": ids_BT,
        "attention_mask": torch.ones_like(ids_BT),
        "token_type_ids": torch.zeros_like(ids_BT),
    }


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
