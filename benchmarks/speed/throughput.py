"""Training sequences per second of a candidate, against the reference protocol on the same sequences.

    python -m benchmarks throughput [--lengths sst2 mnli full] [--steps 12] [--batch 16] [--rounds 3] [--threads 2]
        [--device auto|cpu|cuda] [--out FILE.json]

The candidate is EfficientBERT on its own base, the teacher a BERT-base with random weights, the objective
EfficientBERT's with all its terms. Sequences are random word pieces with the lengths of a task: of SST-2 (median 10,
90 % under 27), of MNLI (median 37), or all of 128. Each row adds one thing to the row above:

    reference   the published protocol (benchmarks/reference.py)
    step        this project's candidate and training step; teacher in every step, padded to 128, float32
    batches     grouped by length, padded to the longest of the batch
    cache       the teacher's outputs from disk
    precision   bfloat16 where the processor has it
    workers     two processes of half the threads each, with a candidate each

A measurement is one candidate, from its supernet's weights to its last step; the reference protocol loads them from
disk for each, our workers have them mapped. All settings take turns in every round, each in processes of their own that
are there from the start; ratios are within a round.

In the same rounds, all matrix products of the candidates of `precision` and of `workers` are computed by themselves:
the last lines of a table say how much of the time of the training steps that is, which is the rate of the steps in
floating-point operations as a share of what plain products of the same shapes reach. Both workers work at once.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers import BertConfig, BertForSequenceClassification
from transformers.utils import logging

from benchmarks.measuring import error_of_mean
from benchmarks.speed import products, reference
from distill.objectives import OBJECTIVES, Objective
from distill.objectives.outputs import Batch
from distill.tasks.encoding import Encoded, load_encoded, save_encoded, training_batches
from distill.training.loop import make_accelerator, train
from distill.training.recipe import Recipe
from distill.training.teacher import LiveTeacher, SavedTeacher, save_outputs
from search_spaces import PUBLISHED
from supernet.build import build, from_scratch, load_weights
from supernet.inherit import inherit

FULL = 128
# Median and 90 % quantile of a task's lengths; None: all are full.
LENGTHS: dict[str, tuple[float, float] | None] = {"sst2": (10, 27), "mnli": (37, 66), "full": None}
SETTINGS = ("reference", "step", "batches", "cache", "precision", "workers")
COUNTED = ("precision", "workers")
CANDIDATE = PUBLISHED["efficientbert"]
TEACHER = PUBLISHED["bert-base"].base
OBJECTIVE = "efficientbert"
SEED, LABELS = 0, 2


def sequences(rows: int, quantiles: tuple[float, float] | None) -> Encoded:
    """Random word pieces in sequences whose lengths are log-normal with these quantiles."""
    rng = np.random.default_rng(SEED)
    lengths = np.full(rows, FULL)
    if quantiles is not None:
        middle, high = quantiles
        deviation = math.log(high / middle) / 1.2816
        lengths = np.clip(np.exp(rng.normal(math.log(middle), deviation, rows)).round().astype(int), 3, FULL)
    tokens = int(lengths.sum())
    return Encoded(
        input_ids=rng.integers(1000, TEACHER.vocabulary, tokens).astype(np.int32),
        token_type_ids=np.zeros(tokens, np.int8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        labels=rng.integers(0, LABELS, rows),
    )


def padded(batch: Batch) -> Batch:
    """To the full length."""
    more = FULL - batch["input_ids"].shape[1]
    wide = {name: torch.nn.functional.pad(value, (0, more)) for name, value in batch.items() if value.ndim == 2}
    return {**batch, **wide}


def prepare(folder: Path, names: list[str], batch: int, steps: int, device: str = "auto") -> dict[str, float]:
    """The files of both sides; returns the seconds that the teacher's outputs took."""
    torch.manual_seed(SEED)
    student = from_scratch(CANDIDATE.base, reference.BLOCKS, labels=LABELS)
    student.save_pretrained(folder / "supernet")
    config = BertConfig(num_labels=LABELS, hidden_act="gelu_pytorch_tanh", attn_implementation="eager")
    teacher = BertForSequenceClassification(config).eval()
    teacher.save_pretrained(folder / "teacher")
    torch.save(reference.Encoder(CANDIDATE.base, reference.BLOCKS).state_dict(), folder / "reference.pt")
    accelerator = make_accelerator(device)
    needs = OBJECTIVES[OBJECTIVE].make({}, student.config, teacher.config).teacher_needs
    seconds = {}
    for name in names:
        rows = sequences(batch * steps, LENGTHS[name])
        save_encoded(rows, folder / f"{name}.npz")
        begun = time.perf_counter()
        batches = training_batches(rows, batch, steps, SEED, 0)
        save_outputs(LiveTeacher(teacher, needs, accelerator), batches, folder / name)
        seconds[name] = time.perf_counter() - begun
    return seconds


class Side:
    """One setting in a process of its own: trains a candidate when it is told to."""

    def __init__(self, setting: str, folder: Path, batch: int, steps: int, threads: int, device: str = "auto") -> None:
        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        self.setting, self.folder, self.batch, self.steps = setting, folder, batch, steps
        self.training = 0.0
        self.products: dict[str, Counter[products.Product]] = {}
        place = SETTINGS.index(setting)
        self.accelerator = make_accelerator(device, rounded=place >= SETTINGS.index("precision"))
        self.grouped, self.cached = place >= SETTINGS.index("batches"), place >= SETTINGS.index("cache")
        if setting == "reference":
            torch.manual_seed(SEED)
            self.dense = reference.Encoder(TEACHER, 1).eval().to(self.accelerator.device)
            return
        self.teacher = None
        if not self.cached:
            self.teacher = BertForSequenceClassification.from_pretrained(folder / "teacher").eval()
        self.teacher_config = BertConfig.from_pretrained(folder / "teacher")
        self.weights = load_file(folder / "supernet" / "model.safetensors")

    def run(self, name: str) -> None:
        """Train a candidate on the sequences of this name."""
        rows = load_encoded(self.folder / f"{name}.npz")
        stream = training_batches(rows, self.batch, self.steps, SEED, 0)
        if self.setting == "reference":
            full = [padded(batch) for batch in stream]
            student = reference.Encoder(CANDIDATE.base, reference.BLOCKS)
            student.load_state_dict(torch.load(self.folder / "reference.pt", weights_only=True))
            student.to(self.accelerator.device)
            reference.train(
                student, CANDIDATE, self.dense, [(batch["input_ids"], batch["attention_mask"]) for batch in full]
            )
            return
        model = build(CANDIDATE, labels=LABELS)
        load_weights(model, inherit(self.weights, CANDIDATE))
        objective = OBJECTIVES[OBJECTIVE].make({}, model.config, self.teacher_config, rows)
        teacher: Any = SavedTeacher(self.folder / name) if self.cached else self.live(objective)
        recipe = Recipe(steps=self.steps, batch_size=self.batch)
        batches = list(stream if self.grouped else map(padded, stream))
        trained = time.perf_counter()
        train(
            model,
            batches,
            objective,
            recipe,
            accelerator=self.accelerator,
            teacher=teacher,
            seed=SEED,
        )
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        self.training = time.perf_counter() - trained

    def rate(self, name: str) -> tuple[int, float, float]:
        """Floating-point operations of the matrix products of a candidate's training; what they take by themselves, and
        what the latest training took, in seconds.
        """
        if name not in self.products:
            with products.Recorder() as seen:
                self.run(name)
            self.products[name] = seen.counts
            self.run(name)
        counts = self.products[name]
        return products.operations(counts), products.seconds(counts, self.accelerator.device), self.training

    def live(self, objective: Objective) -> LiveTeacher:
        assert self.teacher is not None
        return LiveTeacher(self.teacher, objective.teacher_needs, self.accelerator)


def serve(pipe: Connection, *arguments: Any) -> None:
    """A process that answers with what a method of its side returns."""
    side = Side(*arguments)
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        method, name = asked
        pipe.send(getattr(side, method)(name))


def start(serving: Callable[..., None], *arguments: Any) -> Connection:
    """The pipe to a new process that runs `serving` on the other end, once it has sent something."""
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=serving, args=(there, *arguments), daemon=True).start()
    there.close()  # so that its end is the process's
    here.recv()
    return here


def machine() -> str:
    """The processor's name and its number of cores."""
    about = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", about.read_text(), re.MULTILINE) if about.exists() else []
    return f"{(names or [platform.processor() or platform.machine()])[0]}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description="training throughput against the reference protocol")
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--steps", type=int, default=12, help="of a candidate")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="file of all measurements")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    found: dict[str, dict[str, list[float]]] = {name: {setting: [] for setting in SETTINGS} for name in options.lengths}
    rates: dict[str, dict[str, list[tuple[float, ...]]]] = {
        name: {setting: [] for setting in COUNTED} for name in options.lengths
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        seconds = prepare(folder, options.lengths, options.batch, options.steps, options.device)
        given = (folder, options.batch, options.steps)
        alone = {setting: [start(serve, setting, *given, options.threads, options.device)] for setting in SETTINGS[:-1]}
        half = max(1, options.threads // 2)
        pairs = [start(serve, SETTINGS[-1], *given, half, options.device) for _ in range(2)]
        sides = alone | {SETTINGS[-1]: pairs}
        sequences_each = options.batch * options.steps
        for number in range(-1, options.rounds):  # the first one warms up
            for name in options.lengths:
                for setting, pipes in sides.items():
                    begun = time.perf_counter()
                    for pipe in pipes:
                        pipe.send(("run", name))
                    for pipe in pipes:
                        pipe.recv()
                    rate = len(pipes) * sequences_each / (time.perf_counter() - begun)
                    counted = []
                    if setting in COUNTED:
                        for pipe in pipes:
                            pipe.send(("rate", name))
                        counted = [pipe.recv() for pipe in pipes]
                    if number >= 0:
                        found[name][setting].append(rate)
                        if counted:
                            rates[name][setting].append(tuple(map(mean, zip(*counted, strict=True))))
                    turn = f"round {number + 1}" if number >= 0 else "warm-up"
                    print(f"{turn}  {name:5} {setting:10} {rate:8.1f} sequences a second", flush=True)
        for pipes in sides.values():
            for pipe in pipes:
                pipe.send(None)
    accelerator = make_accelerator(options.device)
    print(
        f"\n{machine()}, {options.threads} threads\n"
        f"torch {torch.__version__}, transformers {transformers.__version__}\n"
        f"batches of {options.batch}, {options.steps} steps a candidate, {options.rounds} rounds; "
        f"{accelerator.device.type}, precision {accelerator.mixed_precision}"
    )
    for name, by_setting in found.items():
        print(f"{name}: the teacher's outputs took {seconds[name]:.1f} s, once")
        below = by_setting["reference"]
        for setting, values in by_setting.items():
            times = [value / one for value, one in zip(values, by_setting["reference"], strict=True)]
            gain = [value / one for value, one in zip(values, below, strict=True)]
            print(
                f"  {setting:10} {median(values):8.1f} a second  {mean(times):6.2f} ± {error_of_mean(times):.2f} times "
                f"the reference, {mean(gain):5.2f} ± {error_of_mean(gain):.2f} the row above"
            )
            below = values
        for setting, measured in rates[name].items():
            shares = [alone / whole for _, alone, whole in measured]
            steps, plain = (median(each[0] / each[place] / 1e9 for each in measured) for place in (2, 1))
            print(
                f"  {setting}: {steps:.0f} GFLOP/s a process in training steps, {plain:.0f} in plain products of the "
                f"same shapes: {mean(shares):.2f} ± {error_of_mean(shares):.2f}"
            )
    if options.out:
        kept = {"sequences a second": found, "operations, products, training": rates}
        options.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
