"""Training sequences per second of a candidate, against the reference protocol on the same sequences.

The candidate is EfficientBERT on its own base, the teacher a BERT-base with random weights, the objective
EfficientBERT's with all its terms. Sequences are random word pieces with the lengths of a task: of SST-2 (median 10,
90 % below 27), of MNLI (median 37), or all of 128. Each setting adds one thing to the one before:

    reference   the published protocol (benchmarks/published_protocol.py)
    step        this project's candidate and training step; teacher in every step, padded to 128, float32
    batches     grouped by length, padded to the longest sequence of the batch
    cache       the teacher's outputs from disk
    precision   bfloat16 where the processor has it
    workers     two processes of half the threads each, with a candidate each

A measurement is one candidate, from its supernet's weights to its last step; the reference protocol loads them from
disk for each candidate, our workers have them mapped. All settings take turns in every round, each in processes of its
own that run all the time; ratios are within a round, and the first round does not count.
"""

import math
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForSequenceClassification

from benchmarks import published_protocol
from benchmarks.common import Report, ratio, start_server, summarise, take_turns, timed
from distill.objectives import OBJECTIVES
from distill.objectives.outputs import Batch
from distill.tasks.encoding import Encoded, load_encoded, save_encoded, training_batches
from distill.training.loop import make_accelerator, train
from distill.training.progress import silence_transformers
from distill.training.recipe import Recipe
from distill.training.teacher_outputs import LiveTeacher, SavedTeacher, save_outputs
from search_spaces import PUBLISHED, Architecture
from supernet.build import build
from supernet.inherit import inherit

FULL = 128
# Median and 90 % quantile of a task's lengths; None: all sequences are full.
LENGTHS: dict[str, tuple[float, float] | None] = {"sst2": (10, 27), "mnli": (37, 66), "full": None}
SETTINGS = ("reference", "step", "batches", "cache", "precision", "workers")
CANDIDATE = PUBLISHED["efficientbert"]
TEACHER = PUBLISHED["bert-base"].base
OBJECTIVE = "efficientbert"
SEED, LABELS = 0, 2


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
    student = build(Architecture.uniform(CANDIDATE.base, stack=published_protocol.BLOCKS), num_labels=LABELS)
    student.save_pretrained(folder / "supernet")
    config = BertConfig(num_labels=LABELS, hidden_act="gelu_pytorch_tanh", attn_implementation="eager")
    teacher = BertForSequenceClassification(config).eval()
    teacher.save_pretrained(folder / "teacher")
    torch.save(
        published_protocol.Encoder(CANDIDATE.base, published_protocol.BLOCKS).state_dict(), folder / "reference.pt"
    )
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
        silence_transformers()
        self.setting, self.folder, self.batch, self.steps = setting, folder, batch, steps
        place = SETTINGS.index(setting)
        self.accelerator = make_accelerator(device, "auto" if place >= SETTINGS.index("precision") else "no")
        self.grouped, self.cached = place >= SETTINGS.index("batches"), place >= SETTINGS.index("cache")
        if setting == "reference":
            torch.manual_seed(SEED)
            self.dense = published_protocol.Encoder(TEACHER, 1).eval().to(self.accelerator.device)
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
        model = build(CANDIDATE, num_labels=LABELS, weights=inherit(self.weights, CANDIDATE))
        objective = OBJECTIVES[OBJECTIVE].make({}, model.config, self.teacher_config, rows)
        teacher: Any = SavedTeacher(self.folder / name)
        if not self.cached:
            teacher = LiveTeacher(self.teacher, objective.teacher_needs, self.accelerator)
        recipe = Recipe(steps=self.steps, batch_size=self.batch)

        train(model, batches, objective, recipe, accelerator=self.accelerator, teacher=teacher, seed=SEED)
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize()

    def run_reference(self, batches: Sequence[Batch]) -> None:
        """Train a candidate by the reference protocol."""
        student = published_protocol.Encoder(CANDIDATE.base, published_protocol.BLOCKS)
        student.load_state_dict(torch.load(self.folder / "reference.pt", weights_only=True))
        student.to(self.accelerator.device)
        pairs = [(batch["input_ids"], batch["attention_mask"]) for batch in batches]
        published_protocol.train(student, CANDIDATE, self.dense, pairs)


def serve(connection: Connection, *arguments: Any) -> None:
    """Train a candidate on the sequences of each kind of lengths that is asked for."""
    trainer = Trainer(*arguments)
    connection.send(None)
    while (name := connection.recv()) is not None:
        trainer.run(name)
        connection.send(None)


def measure(name: str, connections: Sequence[Connection], sequences_each: int, _: int) -> float:
    """Sequences a second when each of a setting's processes trains a candidate, all at once."""

    def train_all() -> None:
        for connection in connections:
            connection.send(name)
        for connection in connections:
            connection.recv()

    seconds = timed(train_all)[1]
    return len(connections) * sequences_each / seconds


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
        rates = take_turns(
            {
                (name, setting): partial(measure, name, processes[setting], options.batch * options.steps)
                for name in options.lengths
                for setting in SETTINGS
            },
            range(options.rounds),
            warmup=1,
            on_value=lambda side, number, rate: report.progress(
                f"round {number + 1}  {' '.join(side):15} {rate:8.1f} sequences a second"
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
    results = {}
    for name in options.lengths:
        of_settings = {setting: rates[name, setting] for setting in SETTINGS}
        show(report, name, of_settings, teacher_seconds[name])
        results[name] = {
            "seconds of the teacher's outputs": teacher_seconds[name],
            "sequences a second": of_settings,
        }
    report.save(results, seeds=[SEED])


def show(report: Report, name: str, rates: Mapping[str, Sequence[float]], teacher_seconds: float) -> None:
    """Print the table of one kind of lengths."""
    rows, before = [], rates["reference"]
    for setting, rate in rates.items():
        against_reference = ratio(rate, rates["reference"]).with_error()
        rows.append((setting, f"{summarise(rate).median:.1f}", against_reference, ratio(rate, before).with_error()))
        before = rate
    columns = ("setting", "sequences a second", "times the reference", "times the row above")
    report.table(columns, rows, f"{name}; the teacher's outputs took {teacher_seconds:.1f} s, once")
