"""How the cost of evaluating a candidate grows, and by which law.

What is measured, by variable:

    candidates  the seconds of a worker that maps the data, the teacher's outputs and the supernet's weights once and
                then builds, inherits and trains so many candidates, one after the other
    layers      the seconds of a training step of EfficientBERT's base model with so many layers
    width       the same with so many channels, inside the FFNs as well
    tokens      the same on sequences of so many tokens

All use this project's training step, EfficientBERT's objective and a teacher's outputs from disk; the teacher is as
wide as BERT-base, has random weights, and as many layers as the student. The settings of all variables take turns in
every round, and each round is divided by its level: the median over a variable's settings of their seconds relative to
their medians over all rounds. A law is fitted to the medians of the rounds by least squares of relative residuals.
Among the sums of the variable's terms without a negative coefficient, it is the shortest whose error, for a setting
that the fit leaves out, is within the noise of the least one. `throughput` measures what a second worker brings.
"""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from benchmarks.common import Report, summarise, take_turns
from benchmarks.laws import laws, simplest, terms_of
from benchmarks.throughput import sequences
from distill.objectives import OBJECTIVES
from distill.tasks.encoding import Encoded, load_encoded, save_encoded, training_batches
from distill.training.loop import make_accelerator, train
from distill.training.recipe import Recipe
from distill.training.teacher_outputs import LiveTeacher, SavedTeacher, save_outputs
from search_spaces import PUBLISHED, Architecture, cost
from supernet.build import build, config_of
from supernet.inherit import inherit

CANDIDATE = PUBLISHED["efficientbert"]
BASE = CANDIDATE.base
OBJECTIVE = "efficientbert"
# Blocks of a layer of the supernet.
BLOCKS = 4
BATCH, TOKENS, STEPS = 16, 32, 6
SEED = 0
STEPPED: dict[str, tuple[int, ...]] = {
    "layers": (1, 2, 4, 6, 8, 12),
    "width": (180, 360, 540, 720, 900, 1080),
    "tokens": (8, 16, 32, 64, 96, 128),
}
CANDIDATES = (1, 2, 4, 8)
VARIABLES = ("candidates", *STEPPED)
UNITS = {"candidates": "seconds", **dict.fromkeys(STEPPED, "seconds a step")}

# Variable -> value -> seconds in every round.
Seconds = dict[str, dict[int, list[float]]]


def without_levels(rounds_RV: np.ndarray) -> np.ndarray:
    """The rounds without what made a whole round of settings slower or faster than the others."""
    levels_R = np.median(rounds_RV / np.median(rounds_RV, axis=0), axis=1)
    return rounds_RV / levels_R[:, None]


def noise_of(rounds_RV: np.ndarray) -> float:
    """Relative standard error of a setting's mean over the rounds, root of the mean square over the settings."""
    return float(np.sqrt(np.mean([(summarise(list(rounds)).error / mean(rounds)) ** 2 for rounds in rounds_RV.T])))


def setting(variable: str, value: int) -> tuple[Architecture, int]:
    """The student and the tokens of a training step."""
    base, tokens = BASE, TOKENS
    if variable == "layers":
        base = replace(BASE, depth=value)
    elif variable == "width":
        base = replace(BASE, width=value, inner=value)
    else:
        tokens = value
    return Architecture.uniform(base), tokens


def flops(variable: str, value: int) -> int:
    """Floating-point operations of the linear maps in a training step: forward, and twice that backward."""
    student, tokens = setting(variable, value)
    return 6 * BATCH * cost.macs_linear(student, tokens)


def teacher_config(depth: int) -> BertConfig:
    return BertConfig(num_hidden_layers=depth, num_labels=2)


def prepare(folder: Path, student: Architecture, tokens: int) -> Path:
    """The folder with sequences of so many tokens and a teacher's outputs for them, made if it does not exist yet."""
    depth = student.base.depth
    place = folder / f"{depth}-{tokens}"
    if not place.exists():
        place.mkdir()
        torch.manual_seed(SEED)
        teacher = BertForSequenceClassification(teacher_config(depth))
        needs = OBJECTIVES[OBJECTIVE].make({}, config_of(student), teacher.config).teacher_needs
        rows = sequences(BATCH * STEPS, (tokens, tokens))
        save_encoded(rows, place / "rows.npz")
        batches = training_batches(rows, BATCH, STEPS, SEED, 0)
        save_outputs(LiveTeacher(teacher, needs, make_accelerator()), batches, place / "outputs")
    return place


def train_on(model: PreTrainedModel, rows: Encoded, teacher: SavedTeacher) -> list[float]:
    """Train for STEPS steps; returns the seconds of each step but the first."""
    ends: list[float] = []
    train(
        model,
        training_batches(rows, BATCH, STEPS, SEED, 0),
        OBJECTIVES[OBJECTIVE].make({}, model.config, teacher_config(model.config.num_hidden_layers), rows),
        Recipe(steps=STEPS, batch_size=BATCH),
        accelerator=make_accelerator(),
        teacher=teacher,
        seed=SEED,
        after_step=lambda step, loss: ends.append(time.perf_counter()),
    )
    return [end - begin for begin, end in pairwise(ends)]


def step_seconds(folder: Path, variable: str, value: int) -> float:
    """The median seconds of a training step."""
    student, tokens = setting(variable, value)
    place = prepare(folder, student, tokens)
    return median(train_on(build(student), load_encoded(place / "rows.npz"), SavedTeacher(place / "outputs")))


class Worker:
    """What all candidates of a process need."""

    def __init__(self, supernet: Path, place: Path) -> None:
        self.weights: dict[str, Tensor] = load_file(supernet / "model.safetensors")
        self.rows, self.teacher = load_encoded(place / "rows.npz"), SavedTeacher(place / "outputs")

    def evaluate(self, candidates: int) -> None:
        """Build and train so many candidates, one after the other."""
        for _ in range(candidates):
            model = build(CANDIDATE, weights=inherit(self.weights, CANDIDATE))
            train_on(model, self.rows, self.teacher)


def measure(variables: Sequence[str], rounds: int, report: Report) -> Seconds:
    """Seconds of all settings of these variables in every round."""
    settings = {"candidates": CANDIDATES, **STEPPED}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        supernet, place = folder / "supernet", prepare(folder, CANDIDATE, TOKENS)
        build(Architecture.uniform(BASE, stack=BLOCKS)).save_pretrained(supernet)

        def seconds(variable: str, value: int, _: int) -> float:
            if variable in STEPPED:
                return step_seconds(folder, variable, value)
            started = time.perf_counter()
            Worker(supernet, place).evaluate(value)
            return time.perf_counter() - started

        values = take_turns(
            {
                (variable, value): partial(seconds, variable, value)
                for variable in variables
                for value in settings[variable]
            },
            range(rounds),
            warmup=1,
            on_value=lambda side, number, took: report.progress(
                f"round {number + 1} of {rounds}  {side[1]:4} {side[0]:10} {took:.3f} {UNITS[side[0]]}"
            ),
        )
    return {variable: {value: values[variable, value] for value in settings[variable]} for variable in variables}


def show(report: Report, variable: str, of_values: Mapping[int, list[float]]) -> None:
    """Print the table and the law of a variable."""
    values, rounds_RV = np.array(list(of_values)), without_levels(np.array(list(of_values.values())).T)
    fitted = laws(terms_of(variable), values, np.median(rounds_RV, axis=0))
    noise = noise_of(rounds_RV)
    law = simplest(fitted, noise)
    rows = []
    for value, rounds, expected in zip(of_values, rounds_RV.T, law(values), strict=True):
        rate = f"{flops(variable, value) / median(rounds) / 1e9:.1f}" if variable in STEPPED else ""
        spread = f"{min(rounds):.4f} to {max(rounds):.4f}"
        rows.append((value, f"{median(rounds):.4f}", spread, f"{expected:.4f}", rate))
    columns = (variable, UNITS[variable], f"least to most of {len(rounds_RV)} rounds", "by the law", "GFLOP/s")
    report.table(columns, rows)
    report.note(f"law: {law}")
    report.note(f"worst residual {law.worst:.1%}; noise of a setting {noise:.1%}")
    for place in (0, -1):
        parts = law.parts(values)[:, place]
        shares = (f"{name} {part / parts.sum():.0%}" for name, part in zip(law.terms, parts, strict=True))
        report.note(f"of {values[place]} {variable}: {', '.join(shares)}")
    errors = "; ".join(f"{other.name} {other.left_out:.1%}" for other in fitted)
    report.note(f"error of a setting that is left out: {errors}")
    report.note()


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=VARIABLES, default=VARIABLES, help="variables (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    seconds = measure(options.only, options.rounds, report)
    facts = {"batch": BATCH, "tokens": TOKENS, "steps": STEPS, "precision": make_accelerator().mixed_precision}
    report.save({**facts, "seconds": seconds}, seeds=[SEED])
    for variable, of_values in seconds.items():
        show(report, variable, of_values)
