"""After how many training steps does compiling a candidate pay?

    python -m benchmarks.compiled [--lengths sst2 mnli full] [--steps 24] [--batch 16] [--threads 2]

The candidate and its training are those of `benchmarks.throughput`, in bfloat16 and with the teacher's outputs from
disk. torch.compile, with lengths as variables, is given the FFN blocks alone, all layers, or the whole model; each once
with an empty cache of compiled code and once more, in another process, with what the first left there. A new
architecture has FFN blocks that no cache knows.

A step's time is the median over the second half of the steps. What the first half takes above that is the price.
"""

import argparse
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks.throughput import LENGTHS, Side, machine, prepare


def compile_blocks(model: PreTrainedModel) -> None:
    encoder: Any = model.base_model.encoder
    for layer in encoder.layer:
        for block in layer.ffn:
            block.compile(dynamic=True)


def compile_layers(model: PreTrainedModel) -> None:
    encoder: Any = model.base_model.encoder
    for layer in encoder.layer:
        layer.compile(dynamic=True)


def compile_all(model: PreTrainedModel) -> None:
    model.compile(dynamic=True)


WAYS: dict[str, Callable[[PreTrainedModel], None]] = {
    "as it is": lambda model: None,
    "FFN blocks": compile_blocks,
    "layers": compile_layers,
    "whole model": compile_all,
}


def step_seconds(way: str, cache: str, name: str, *given: Any) -> list[float]:
    """Of every step of a candidate."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    side = Side("precision", *given)
    side.run(name)  # memory, and the library's products for these shapes
    times: list[float] = []

    def after_step(step: int, loss: float) -> None:
        now = time.perf_counter()
        times.append(now - last[0])
        last[0] = now

    last = [math.nan]

    def adapt(model: PreTrainedModel) -> None:
        WAYS[way](model)
        last[0] = time.perf_counter()

    side.run(name, adapt, after_step)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="after how many training steps does compiling a candidate pay")
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    print(f"{machine()}, {options.threads} threads, torch {torch.__version__}, batches of {options.batch}\n")
    print("| lengths | compiled | cache | ms a step | price, s | pays after steps |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(folder, options.lengths, options.batch, options.steps)
        given = (folder, options.batch, options.steps, options.threads)
        for name in options.lengths:
            usual = math.nan
            for place, way in enumerate(WAYS):
                for state in ("empty", "full") if place else ("",):
                    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                        times = pool.submit(step_seconds, way, str(folder / f"code-{place}-{name}"), name, *given)
                        half = options.steps // 2
                        step = median(times.result()[half:])
                    price = max(0.0, sum(times.result()[:half]) - half * step)
                    if not place:
                        usual = step
                    pays = f"{price / (usual - step):.0f}" if step < usual else "never" if place else ""
                    print(f"| {name} | {way} | {state} | {1000 * step:.0f} | {price:.1f} | {pays} |", flush=True)


if __name__ == "__main__":
    main()
