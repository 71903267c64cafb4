"""How the cost of evaluating a candidate grows, and by which law.

    python -m benchmarks scaling [--only layers width ...] [--rounds 5] [--out FILE.json] [--plots FOLDER]
    python -m benchmarks scaling --from FILE.json [--only layers width ...] [--plots FOLDER]

Measured are, against

    candidates  the seconds of a worker that maps the data, the teacher's outputs and the supernet's weights once and
                then builds, inherits and trains so many candidates, one after the other
    layers      the seconds of a training step of EfficientBERT's base model with so many layers
    width       ... with so many channels, inside the FFNs as well
    tokens      ... on sequences of so many tokens
    workers     the seconds of a candidate, all together, with so many processes that share the threads

with this project's training step, EfficientBERT's objective and a teacher's outputs from disk; the teacher is as wide
as BERT-base, has random weights, and as many layers as the student. The settings of a variable take turns in every
round, and each round is divided by its level, the median over the settings of what it took against the median of all
rounds. A law is fitted to the medians of the rounds by least squares of relative residuals. Among the sums of the
variable's terms without a negative coefficient, it is the shortest whose error, for a setting that the fit leaves out,
is within the noise of the least one. `OMP_NUM_THREADS` says how many threads there are to share.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel
from transformers.utils import logging

from benchmarks.measuring import error_of_mean
from benchmarks.speed.throughput import machine, sequences, start
from distill.objectives import OBJECTIVES
from distill.tasks.encoding import Encoded, load_encoded, save_encoded, training_batches
from distill.training.loop import make_accelerator, train
from distill.training.recipe import Recipe
from distill.training.teacher import LiveTeacher, SavedTeacher, save_outputs
from search_spaces import PUBLISHED, Architecture, cost
from supernet.build import build, config_of, from_scratch, load_weights
from supernet.inherit import inherit

CANDIDATE = PUBLISHED["efficientbert"]
BASE = CANDIDATE.base
OBJECTIVE = "efficientbert"
# Blocks of a layer of the supernet.
BLOCKS = 4
BATCH, TOKENS, STEPS = 16, 32, 6
# Candidates that each worker trains at a time.
EACH = 2
SEED = 0
STEPPED: dict[str, tuple[int, ...]] = {
    "layers": (1, 2, 4, 6, 8, 12),
    "width": (180, 360, 540, 720, 900, 1080),
    "tokens": (8, 16, 32, 64, 96, 128),
}
CANDIDATES = (1, 2, 4, 8)
VARIABLES = ("candidates", *STEPPED, "workers")
UNITS = {"candidates": "seconds", **dict.fromkeys(STEPPED, "seconds a step"), "workers": "seconds a candidate"}

# Variable -> value -> what each round took.
Seconds = dict[str, dict[int, list[float]]]
Term = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Law:
    """Seconds as a sum of terms.

    Attributes:
        errors: standard errors of the coefficients, from the residuals.
        worst: the largest relative residual.
        left_out: relative error (root of the mean square) of each setting as predicted from the others.
    """

    terms: Mapping[str, Term]
    coefficients: tuple[float, ...]
    errors: tuple[float, ...]
    worst: float
    left_out: float

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return self.parts(values).sum(axis=0)

    def parts(self, values: np.ndarray) -> np.ndarray:
        """Seconds of each term, (terms, values)."""
        pairs = zip(self.terms.values(), self.coefficients, strict=True)
        return np.array([coefficient * term(values.astype(float)) for term, coefficient in pairs])

    @property
    def name(self) -> str:
        return " + ".join(self.terms)

    def __str__(self) -> str:
        values = (f"({c:.3g} ± {e:.1g})" for c, e in zip(self.coefficients, self.errors, strict=True))
        return " + ".join(value + f"·{term}" * (term != "1") for value, term in zip(values, self.terms, strict=True))


def fit(terms: Mapping[str, Term], values: np.ndarray, seconds: np.ndarray) -> Law:
    """The coefficients of these terms by least squares of relative residuals. There must be more values than terms."""
    design = np.stack([term(values.astype(float)) for term in terms.values()], axis=1) / seconds[:, None]
    scale = np.linalg.norm(design, axis=0)
    scaled, target = design / scale, np.ones(len(values))
    coefficients = np.linalg.lstsq(scaled, target, rcond=None)[0]
    residuals = target - scaled @ coefficients
    covariance = np.linalg.inv(scaled.T @ scaled)
    leverage = np.einsum("vt,tu,vu->v", scaled, covariance, scaled)
    variance = residuals @ residuals / (len(values) - len(terms))
    with np.errstate(divide="ignore"):  # a term that one value alone tells of cannot do without it: infinite
        left_out = np.sqrt(((residuals / (1 - leverage)) ** 2).mean())
    return Law(
        terms,
        tuple(coefficients / scale),
        tuple(np.sqrt(variance * np.diag(covariance)) / scale),
        worst=np.abs(residuals).max(),
        left_out=left_out,
    )


def laws(terms: Mapping[str, Term], values: np.ndarray, seconds: np.ndarray) -> list[Law]:
    """All sums of some of these terms that the values can tell and in which no coefficient is negative, as no work
    takes less than no time; short ones first, then those with the least error.
    """
    sizes = range(1, min(len(terms), len(values) - 1) + 1)
    chosen = (names for size in sizes for names in combinations(terms, size))
    found = [fit({name: terms[name] for name in names}, values, seconds) for names in chosen]
    return sorted((law for law in found if min(law.coefficients) >= 0), key=lambda law: (len(law.terms), law.left_out))


def simplest(found: Sequence[Law], noise: float) -> Law:
    """The first of these laws whose error is within the noise of the least one."""
    least = min(law.left_out for law in found)
    return next(law for law in found if law.left_out <= least + noise)


def terms_of(variable: str, threads: int) -> dict[str, Term]:
    """What a law of this variable can be made of.

    With t threads in all, of which each of n workers has t / n, a candidate takes s + p n / t, where p is what its
    threads share and s what they do not: all together a candidate every p / t + s / n seconds. More workers than
    threads only wait for each other.
    """
    if variable != "workers":
        return {"1": np.ones_like, variable: lambda x: x, f"{variable}²": np.square}
    shared: dict[str, Term] = {"1": np.ones_like}
    return shared | ({f"1/min(workers, {threads})": lambda x: 1 / np.minimum(x, threads)} if threads > 1 else {})


def levelled(rounds_RV: np.ndarray) -> np.ndarray:
    """Without what made a whole round of settings slower or faster than the others."""
    levels_R = np.median(rounds_RV / np.median(rounds_RV, axis=0), axis=1)
    return rounds_RV / levels_R[:, None]


def noise_of(rounds_RV: np.ndarray) -> float:
    """Relative standard error of a setting's mean over the rounds, root of the mean square over the settings."""
    return float(np.sqrt(np.mean([(error_of_mean(list(rounds)) / mean(rounds)) ** 2 for rounds in rounds_RV.T])))


def worker_counts(threads: int) -> tuple[int, ...]:
    """Numbers of workers that share the threads out evenly, and one worker too many."""
    return (*(count for count in range(1, threads + 1) if threads % count == 0), threads + 1)


def setting(variable: str, value: int) -> tuple[Architecture, int]:
    """Student and tokens of a training step."""
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
    """The folder with sequences of so many tokens and a teacher's outputs for them, made where it is not there yet."""
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
    """Train for STEPS steps; the seconds of each step but the first."""
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
    student, tokens = setting(variable, value)
    place = prepare(folder, student, tokens)
    return median(train_on(build(student), load_encoded(place / "rows.npz"), SavedTeacher(place / "outputs")))


class Worker:
    """What all candidates of a process need."""

    def __init__(self, supernet: Path, place: Path) -> None:
        self.weights: dict[str, Tensor] = load_file(supernet / "model.safetensors")
        self.rows, self.teacher = load_encoded(place / "rows.npz"), SavedTeacher(place / "outputs")

    def evaluate(self, candidates: int) -> None:
        for _ in range(candidates):
            model = build(CANDIDATE)
            load_weights(model, inherit(self.weights, CANDIDATE))
            train_on(model, self.rows, self.teacher)


def serve(pipe: Connection, supernet: Path, place: Path) -> None:
    """A worker's process, which trains EACH candidates whenever it is told a number of threads."""
    worker = Worker(supernet, place)
    pipe.send(None)
    while (threads := pipe.recv()) is not None:
        torch.set_num_threads(threads)
        worker.evaluate(EACH)
        pipe.send(None)


def measure(variables: Sequence[str], rounds: int, threads: int) -> Seconds:
    counts = {"candidates": CANDIDATES, **STEPPED, "workers": worker_counts(threads)}
    found: Seconds = {variable: {value: [] for value in counts[variable]} for variable in variables}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        supernet, place = folder / "supernet", prepare(folder, CANDIDATE, TOKENS)
        from_scratch(BASE, BLOCKS).save_pretrained(supernet)
        pipes = [start(serve, supernet, place) for _ in range(max(counts["workers"]))] if "workers" in variables else []

        def once(variable: str, value: int) -> float:
            if variable in STEPPED:
                return step_seconds(folder, variable, value)
            begun = time.perf_counter()
            if variable == "candidates":
                Worker(supernet, place).evaluate(value)
                return time.perf_counter() - begun
            for pipe in pipes[:value]:
                pipe.send(max(1, threads // value))
            for pipe in pipes[:value]:
                pipe.recv()
            return (time.perf_counter() - begun) / (EACH * value)

        for number in range(-1, rounds):  # the first one warms up
            for variable, of_values in found.items():
                for value, seconds in of_values.items():
                    took = once(variable, value)
                    if number >= 0:
                        seconds.append(took)
            print(f"round {number + 1} of {rounds}" if number >= 0 else "warmed up", flush=True)
        for pipe in pipes:
            pipe.send(None)
    return found


def report(variable: str, of_values: Mapping[int, list[float]], threads: int) -> tuple[np.ndarray, np.ndarray, Law]:
    """Print the table and the law; returns values (V,), levelled rounds (R, V) and the law."""
    values, rounds_RV = np.array(list(of_values)), levelled(np.array(list(of_values.values())).T)
    seconds, noise = np.median(rounds_RV, axis=0), noise_of(rounds_RV)
    found = laws(terms_of(variable, threads), values, seconds)
    law = simplest(found, noise)
    print(f"\n{variable}: {UNITS[variable]}, median (least to most of {len(rounds_RV)} rounds), the law's")
    for value, rounds, expected in zip(of_values, rounds_RV.T, law(values), strict=True):
        rate = f"  {flops(variable, value) / median(rounds) / 1e9:6.1f} GFLOP/s" if variable in STEPPED else ""
        print(f"  {value:5}  {median(rounds):.4f} ({min(rounds):.4f} to {max(rounds):.4f})  {expected:.4f}{rate}")
    print(f"  law: {law}")
    print(f"  worst residual {law.worst:.1%}; noise of a setting {noise:.1%}")
    for place in (0, -1):
        parts = law.parts(values)[:, place]
        shares = (f"{name} {part / parts.sum():.0%}" for name, part in zip(law.terms, parts, strict=True))
        print(f"  of {values[place]} {variable}: {', '.join(shares)}")
    print(f"  error of what is left out: {'; '.join(f'{one.name} {one.left_out:.1%}' for one in found)}")
    if variable == "workers":
        for (fewer, before), (more, after) in pairwise(of_values.items()):
            gains = [one / other for one, other in zip(before, after, strict=True)]
            print(f"  {more} against {fewer}: {mean(gains):.2f} ± {error_of_mean(gains):.2f} times as many candidates")
    return values, rounds_RV, law


def draw(path: Path, variable: str, values: np.ndarray, rounds_RV: np.ndarray, law: Law) -> None:
    """All rounds, their medians and the law; of workers what they get done, the inverse of the seconds."""
    import matplotlib  # an extra of the installation

    matplotlib.use("agg")
    from matplotlib import pyplot

    def shown(seconds: np.ndarray) -> np.ndarray:
        return 1 / seconds if variable == "workers" else seconds

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    line = np.linspace(values.min(), values.max(), 200)
    axes.plot(line, shown(law(line)), linewidth=1, label="law")
    axes.plot(values, shown(np.median(rounds_RV, axis=0)), "o", label="median of the rounds")
    axes.plot(np.tile(values, len(rounds_RV)), shown(rounds_RV).ravel(), ".k", markersize=3, label="rounds")
    unit = "candidates a second" if variable == "workers" else UNITS[variable]
    axes.set(xlabel=variable, ylabel=unit, ylim=(0, None))
    axes.set_title(f"seconds: {law}", fontsize="small")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def load(path: Path) -> tuple[dict[str, Any], Seconds]:
    """What `--out` wrote: facts of the run, and all measurements."""
    content = json.loads(path.read_text(encoding="utf-8"))
    found = content["seconds"].items()
    return content["about"], {name: {int(value): row for value, row in rows.items()} for name, rows in found}


def main() -> None:
    parser = argparse.ArgumentParser(description="how the cost of a candidate grows")
    parser.add_argument("--only", nargs="+", choices=VARIABLES, default=VARIABLES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="file of all measurements")
    parser.add_argument("--plots", type=Path, help="folder of the drawings")
    parser.add_argument("--from", dest="source", type=Path, help="file of measurements, in place of measuring")
    options = parser.parse_args()
    logging.disable_progress_bar()
    if options.source:
        about, found = load(options.source)
    else:
        about = {
            "machine": machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "precision": make_accelerator().mixed_precision,
            "batch": BATCH,
            "tokens": TOKENS,
            "steps": STEPS,
        }
        found = measure(options.only, options.rounds, about["threads"])
        if options.out:
            options.out.write_text(json.dumps({"about": about, "seconds": found}, indent=1) + "\n", encoding="utf-8")
    print("\n" + ", ".join(f"{name} {value}" for name, value in about.items()))
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)
    for variable in options.only:
        if variable not in found:
            continue
        values, rounds_RV, law = report(variable, found[variable], about["threads"])
        if options.plots:
            draw(options.plots / f"scaling-{variable}.png", variable, values, rounds_RV, law)


if __name__ == "__main__":
    main()
