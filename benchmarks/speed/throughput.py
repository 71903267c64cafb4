"""Training sequences per second of a candidate, against the reference protocol on the same sequences.

The candidate is EfficientBERT on its own base, the teacher a BERT-base with random weights, the objective
EfficientBERT's with all its terms. Sequences are random word pieces with the lengths of a task: of SST-2 (median 10,
90 % below 27), of MNLI (median 37), or all of 128. Each setting adds one thing to the one before:

    reference   the published protocol (benchmarks/speed/reference.py)
    step        this project's candidate and training step; teacher in every step, padded to 128, float32
    batches     grouped by length, padded to the longest sequence of the batch
    cache       the teacher's outputs from disk
    precision   bfloat16 where the processor has it
    workers     two processes of half the threads each, with a candidate each

A measurement is one candidate, from its supernet's weights to its last step; the reference protocol loads them from
disk for each candidate, our workers have them mapped. All settings take turns in every round, each in processes of its
own that run all the time; ratios are within a round, and the first round does not count.

In the same rounds, all matrix products of the candidates of `precision` and of `workers` are computed by themselves:
the second table says which share of the training steps' time they take, which is the rate of the steps in operations as
a share of what plain products of the same shapes reach. Both workers work at once.
"""

import math
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForSequenceClassification
from transformers.utils import logging

from benchmarks.measuring import ratio, summarise, take_turns, timed
from benchmarks.processes import start_server
from benchmarks.report import Report
from benchmarks.speed import products, reference
from distill.objectives import OBJECTIVES
from distill.objectives.outputs import Batch
from distill.tasks.encoding import Encoded, load_encoded, save_encoded, training_batches
from distill.training.loop import make_accelerator, train
from distill.training.recipe import Recipe
from distill.training.teacher_outputs import LiveTeacher, SavedTeacher, save_outputs
from search_spaces import PUBLISHED
from supernet.build import build, from_scratch, load_weights
from supernet.inherit import inherit

FULL = 128
# Median and 90 % quantile of a task's lengths; None: all sequences are full.
LENGTHS: dict[str, tuple[float, float] | None] = {"sst2": (10, 27), "mnli": (37, 66), "full": None}
SETTINGS = ("reference", "step", "batches", "cache", "precision", "workers")
# The settings whose matrix products are also measured by themselves.
COUNTED = ("precision", "workers")
CANDIDATE = PUBLISHED["efficientbert"]
TEACHER = PUBLISHED["bert-base"].base
OBJECTIVE = "efficientbert"
SEED, LABELS = 0, 2

# Sequences a second; of the counted settings, by process, floating-point operations of the products, the seconds that
# these take by themselves, and the seconds of the training steps.
Measurement = tuple[float, list[tuple[int, float, float]]]


def sequences(rows: int, quantiles: tuple[float, float] | None) -> Encoded:
    """Random word pieces in sequences whose lengths are log-normal with this median and 90 % quantile."""
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
    """The batch, padded to the full length."""
    padding = FULL - batch["input_ids"].shape[1]
    wide = {name: torch.nn.functional.pad(value, (0, padding)) for name, value in batch.items() if value.ndim == 2}
    return {**batch, **wide}


def prepare(folder: Path, names: Sequence[str], batch: int, steps: int, device: str) -> dict[str, float]:
    """Write the files that the processes read; returns the seconds that the teacher's outputs took, by lengths."""
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
        batches = training_batches(rows, batch, steps, SEED, 0)
        live = LiveTeacher(teacher, needs, accelerator)
        _, seconds[name] = timed(partial(save_outputs, live, batches, folder / name))
    return seconds


class Trainer:
    """One setting in a process of its own: trains a candidate whenever it is asked to."""

    def __init__(self, setting: str, folder: Path, batch: int, steps: int, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        self.setting, self.folder, self.batch, self.steps = setting, folder, batch, steps
        self.training_seconds = 0.0
        self.products: dict[str, Counter[products.Product]] = {}
        place = SETTINGS.index(setting)
        self.accelerator = make_accelerator(device, "auto" if place >= SETTINGS.index("precision") else "no")
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
        """Train a candidate on the sequences of these lengths."""
        rows = load_encoded(self.folder / f"{name}.npz")
        batches = list(training_batches(rows, self.batch, self.steps, SEED, 0))
        if not self.grouped:
            batches = list(map(padded, batches))
        if self.setting == "reference":
            self.run_reference(batches)
            return
        model = build(CANDIDATE, labels=LABELS)
        load_weights(model, inherit(self.weights, CANDIDATE))
        objective = OBJECTIVES[OBJECTIVE].make({}, model.config, self.teacher_config, rows)
        teacher: Any = SavedTeacher(self.folder / name)
        if not self.cached:
            teacher = LiveTeacher(self.teacher, objective.teacher_needs, self.accelerator)
        recipe = Recipe(steps=self.steps, batch_size=self.batch)

        def training() -> None:
            train(model, batches, objective, recipe, accelerator=self.accelerator, teacher=teacher, seed=SEED)
            if self.accelerator.device.type == "cuda":
                torch.cuda.synchronize()

        _, self.training_seconds = timed(training)

    def run_reference(self, batches: Sequence[Batch]) -> None:
        """Train a candidate by the reference protocol."""
        student = reference.Encoder(CANDIDATE.base, reference.BLOCKS)
        student.load_state_dict(torch.load(self.folder / "reference.pt", weights_only=True))
        student.to(self.accelerator.device)
        pairs = [(batch["input_ids"], batch["attention_mask"]) for batch in batches]
        reference.train(student, CANDIDATE, self.dense, pairs)

    def product_rate(self, name: str) -> tuple[int, float, float]:
        """Floating-point operations of the matrix products of a candidate's training, the seconds that they take by
        themselves, and the seconds of the latest training.
        """
        if name not in self.products:
            with products.Recorder() as recorder:
                self.run(name)
            self.products[name] = recorder.counts
            self.run(name)
        counts = self.products[name]
        return products.operations(counts), products.seconds(counts, self.accelerator.device), self.training_seconds


def serve(connection: Connection, *arguments: Any) -> None:
    """Answer each request, the name of a method of the trainer and its argument, with what the method returns."""
    trainer = Trainer(*arguments)
    connection.send(None)
    while (request := connection.recv()) is not None:
        method, name = request
        connection.send(getattr(trainer, method)(name))


def ask(connections: Sequence[Connection], method: str, name: str) -> list[Any]:
    """What all these processes answer, which work at once."""
    for connection in connections:
        connection.send((method, name))
    return [connection.recv() for connection in connections]


def measure(setting: str, name: str, connections: Sequence[Connection], sequences_each: int) -> Measurement:
    """Train a candidate in each of a setting's processes."""
    _, seconds = timed(lambda: ask(connections, "run", name))
    counted = ask(connections, "product_rate", name) if setting in COUNTED else []
    return len(connections) * sequences_each / seconds, counted


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--steps", type=int, default=12, help="of a candidate; default: %(default)s")
    parser.add_argument("--batch", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))


def run(options: Namespace, report: Report) -> None:
    torch.set_num_threads(options.threads)
    half = max(1, options.threads // 2)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        teacher_seconds = prepare(folder, options.lengths, options.batch, options.steps, options.device)
        shared = (folder, options.batch, options.steps)
        processes = {
            setting: [
                start_server(serve, setting, *shared, half if setting == "workers" else options.threads, options.device)
                for _ in range(2 if setting == "workers" else 1)
            ]
            for setting in SETTINGS
        }

        def side(name: str, setting: str) -> Callable[[int], Measurement]:
            return lambda _: measure(setting, name, processes[setting], options.batch * options.steps)

        values = take_turns(
            {(name, setting): side(name, setting) for name in options.lengths for setting in SETTINGS},
            range(options.rounds),
            warmup=1,
            on_value=lambda side, number, value: report.progress(
                f"round {number + 1}  {' '.join(side):15} {value[0]:8.1f} sequences a second"
            ),
        )
        for connections in processes.values():
            for connection in connections:
                connection.send(None)
    accelerator = make_accelerator(options.device)
    report.note(
        f"{options.threads} threads, batches of {options.batch}, {options.steps} steps a candidate, "
        f"{options.rounds} rounds; {accelerator.device.type}, precision {accelerator.mixed_precision}"
    )
    for name in options.lengths:
        show(report, name, {setting: values[name, setting] for setting in SETTINGS}, teacher_seconds[name])
    results = {
        name: {
            "seconds of the teacher's outputs": teacher_seconds[name],
            "sequences a second": {setting: [rate for rate, _ in values[name, setting]] for setting in SETTINGS},
            "operations, seconds of products, seconds of training": {
                setting: [counted for _, counted in values[name, setting]] for setting in COUNTED
            },
        }
        for name in options.lengths
    }
    report.save(results, seeds=[SEED])


def show(report: Report, name: str, values: Mapping[str, Sequence[Measurement]], teacher_seconds: float) -> None:
    """Print the tables of one kind of lengths."""
    rates = {setting: [rate for rate, _ in rounds] for setting, rounds in values.items()}
    rows, before = [], rates["reference"]
    for setting, rate in rates.items():
        against_reference = ratio(rate, rates["reference"]).with_error()
        rows.append((setting, f"{summarise(rate).median:.1f}", against_reference, ratio(rate, before).with_error()))
        before = rate
    columns = ("setting", "sequences a second", "times the reference", "times the row above")
    report.table(columns, rows, f"{name}; the teacher's outputs took {teacher_seconds:.1f} s, once")
    rows = []
    for setting in COUNTED:
        operations, alone, training = np.array([np.mean(counted, axis=0) for _, counted in values[setting]]).T
        steps, plain = (summarise(list(operations / seconds / 1e9)).median for seconds in (training, alone))
        rows.append((setting, f"{steps:.0f}", f"{plain:.0f}", ratio(list(alone), list(training)).with_error()))
    report.table(("setting", "GFLOP/s of steps", "of products alone", "share of the steps' time"), rows)
