"""How the cost of evaluating a candidate grows, and by which law.

What is measured, by variable:

    candidates  the seconds of a worker that maps the data, the teacher's outputs and the supernet's weights once and
                then builds, inherits and trains so many candidates, one after the other
    layers      the seconds of a training step of EfficientBERT's base model with so many layers
    width       the same with so many channels, inside the FFNs as well
    tokens      the same on sequences of so many tokens

All use this project's training step, EfficientBERT's objective and a teacher's outputs from disk; the teacher is as
wide as BERT-base, has random weights, and as many layers as the student. The settings of all variables take turns in
every round. A law is a constant plus a linear and a quadratic term, none of them negative, as no work takes negative
time: the least squares of the relative residuals of the medians over the rounds. `throughput` measures what a second
worker brings.
"""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.optimize import nnls
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from benchmarks.common import Report, take_turns, timed
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


def law_of(values: Sequence[int], seconds: Sequence[float]) -> np.ndarray:
    """The coefficients of 1, x and x²: nonnegative, with the least squares of relative residuals."""
    terms_VT = np.power.outer(np.array(values, dtype=float), range(3)) / np.array(seconds)[:, None]
    # In units of each term's own size, as coefficients differ by many powers of ten.
    sizes_T = np.linalg.norm(terms_VT, axis=0)
    coefficients_T: np.ndarray = nnls(terms_VT / sizes_T, np.ones(len(values)))[0] / sizes_T
    return coefficients_T


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


def evaluate(supernet: Path, place: Path, candidates: int) -> None:
    """Load what all candidates of a worker need, then build and train so many of them, one after the other."""
    weights = load_file(supernet / "model.safetensors")
    rows, teacher = load_encoded(place / "rows.npz"), SavedTeacher(place / "outputs")
    for _ in range(candidates):
        train_on(build(CANDIDATE, weights=inherit(weights, CANDIDATE)), rows, teacher)


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
            return timed(lambda: evaluate(supernet, place, value))[1]

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
    medians = [median(rounds) for rounds in of_values.values()]
    coefficients = law_of(list(of_values), medians)
    table = []
    for (value, rounds), middle in zip(of_values.items(), medians, strict=True):
        rate = f"{flops(variable, value) / middle / 1e9:.1f}" if variable in STEPPED else ""
        expected = np.polynomial.Polynomial(coefficients)(value)
        table.append((value, f"{middle:.4f}", f"{min(rounds):.4f} to {max(rounds):.4f}", f"{expected:.4f}", rate))
    report.table((variable, UNITS[variable], "least to most of the rounds", "by the law", "GFLOP/s"), table)
    constant, linear, quadratic = coefficients
    report.note(f"law: {constant:.3g} + {linear:.3g}·{variable} + {quadratic:.3g}·{variable}²\n")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=VARIABLES, default=VARIABLES, help="variables (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    seconds = measure(options.only, options.rounds, report)
    facts = {"batch": BATCH, "tokens": TOKENS, "steps": STEPS, "precision": make_accelerator().mixed_precision}
    report.save({**facts, "seconds": seconds}, seeds=[SEED])
    for variable, of_values in seconds.items():
        show(report, variable, of_values)
