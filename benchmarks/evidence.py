"""Which cheap signal predicts the score of a candidate after full training?

Architectures are drawn from the space of stage 1, sizes uniformly inside the budget. With every seed each of them is
trained by the candidates' recipe with --full-steps steps, on the batches of the seed, and scored on the whole dev
split. Untrained, they are scored on the first rows of the search split. A signal of one seed is compared with the mean
score over the *other* seeds, so that no training is compared with its own final score. "score after full training" says
how well the scores of one seed predict those of others; only a signal with less noise than such a score can be better.
"score of the search" is that of a candidate after its training: the preset's number of steps, in which the learning
rate falls to 0, and its whole search split. "score at the rung" is the intermediate value by which candidates would be
pruned.

Kendall's tau-b is the mean over seeds; intervals are percentiles over resampled architectures. Seconds are per
architecture, from the supernet's weights on; the teacher runs in every step.

With --further-tasks, the same architectures are also trained on these, each from a supernet and a teacher of its own. A
second table compares the score of the search, which is on the first task, with these scores (EfficientBERT, figure 3).

The file of raw numbers is written after every training, and the same command continues from it; seeds can be added.
Several commands can run at the same time, each with a file and an order of seeds of its own; --table joins their files.
"""

import math
import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau

from benchmarks.candidates import dev_score, phases_of
from benchmarks.common import BenchmarkError, Kept, Report, differing, read_results, timed
from distill.training.loop import Diverged
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.evaluation.untrained import UntrainedEvaluator
from nas.planning.allocation import PredictedLosses
from nas.planning.budget import kept_importance, limits_of
from nas.planning.stages import plan
from nas.preparation.prepare import prepare
from nas.preparation.workspace import UntrainedWorkspace, Workspace
from search_spaces.architecture import Architecture
from search_spaces.equivalence import function_key
from search_spaces.spaces import Space

# Rows of the search split on which untrained candidates are scored; and the seed of the random members of a space.
ROWS, DRAWING_SEED = 1_000, 0
TARGET, SEARCH, KEPT = "score after full training", "score of the search", "importance kept"
RUNG = "score at the rung"

# A signal with one of these words in its name is better when it is lower.
LOWER = ("loss", "errors")
# Of the architectures, for an interval of tau.
RESAMPLES = 2_000
COLUMNS = ("signal", "tau", "95 %", "of the best quarter", "seconds")
# The settings of a run, and its measurements by name: "3" of architecture 3 untrained, "3/1" of its training with seed
# 1, "3/1/search" of its evaluation by the search. A signal is a value with the seconds that it takes.
Results = dict[str, Any]
# The value of each signal, and the seconds that it takes.
Signals = dict[str, tuple[float, float]]


class Measure:
    """Measures the candidates of a workspace; those that are untrained are scored on rows of the search split."""

    def __init__(self, workspace: Workspace, full_steps: int) -> None:
        self.evaluator = TrainedEvaluator(workspace)
        self.phases = phases_of(self.evaluator, full_steps)
        self.scorer = UntrainedEvaluator(UntrainedWorkspace((workspace,), ROWS, by_fidelity=True))
        self.kept = kept_importance(workspace.importance())
        self.predicted = None
        if workspace.compensation is not None:
            self.predicted = PredictedLosses.load(workspace.compensation.predictions, *workspace.base())

    def untrained(self, architecture: Architecture) -> Signals:
        """The signals that need no training."""
        score, seconds = timed(lambda: self.scorer.evaluate(architecture))
        predicted = {} if self.predicted is None else {"predicted loss": (self.predicted.of(architecture), 0.0)}
        return {
            "fidelity untrained": (score.value, seconds),
            "score untrained": (score.parts[self.evaluator.config.task], seconds),
            KEPT: (self.kept(architecture), 0.0),
            **predicted,
        }

    def searched(self, architecture: Architecture, seed: int) -> Signals:
        """The score of the search's own evaluation, and its intermediate value at the last rung of stage 1.

        Raises:
            distill.training.loop.Diverged: a loss or the logits stopped being finite.
        """
        evaluator, rungs = self.evaluator, self.evaluator.config.stage1.rungs or (Fraction(1, 2),)
        signals: Signals = {}
        started = time.perf_counter()

        def report(step: int, score: float) -> None:
            if step:
                signals[RUNG] = score, time.perf_counter() - started

        score, seconds = timed(lambda: evaluator.evaluate(architecture, seed, rungs, report).value)
        return signals | {SEARCH: (score, seconds)}

    def trained(self, architecture: Architecture, seed: int, name: str = TARGET) -> Signals:
        """The score on the dev split after full training, under this name.

        Raises:
            distill.training.loop.Diverged: a loss or the logits stopped being finite.
        """

        def score() -> float:
            model = self.evaluator.student(architecture)
            self.evaluator.train(model, self.phases, seed)
            return dev_score(self.evaluator, model)

        return {name: timed(score)}


def on_task(task: str) -> str:
    """The name of the score after full training on a further task."""
    return f"{TARGET} on {task}"


def or_diverged(signals_of: Callable[..., Signals], *arguments: Any) -> Signals | dict[str, str]:
    """The signals, or why the training of the candidate diverged."""
    try:
        return signals_of(*arguments)
    except Diverged as error:
        return {"diverged": str(error)}


def draw(space: Space, number: int) -> list[Architecture]:
    """Random members of the space that compute different functions; a smaller number draws the first of them."""
    rng = random.Random(DRAWING_SEED)
    members: dict[str, Architecture] = {}
    while len(members) < number:
        member = space.sample(rng)
        members.setdefault(function_key(member), member)
    return list(members.values())


def resamples(number: int) -> np.ndarray:
    """How often each of `number` architectures is in each resample, (R, number)."""
    return np.random.default_rng(0).multinomial(number, [1 / number] * number, size=RESAMPLES).astype(float)


def resampled_taus(values_N: np.ndarray, others_N: np.ndarray, counts_RN: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of each resample, (R,); NaN where it is undefined. Calling scipy for each of them would take
    minutes.

    Args:
        counts_RN: how often a resample has each architecture. Two copies of one architecture are no pair.
    """

    def total(pairs_NN: np.ndarray) -> np.ndarray:
        result: np.ndarray = ((counts_RN @ pairs_NN) * counts_RN).sum(axis=1)
        return result

    a, b = (np.sign(row[:, None] - row) for row in (values_N, others_N))
    with np.errstate(invalid="ignore"):
        taus: np.ndarray = total(a * b) / np.sqrt(total(a * a) * total(b * b))
    return taus


def percentiles(taus_R: np.ndarray) -> tuple[float, float]:
    """The central 95 % of the taus that are defined; NaN if none is."""
    if np.isnan(taus_R).all():
        return math.nan, math.nan
    low, high = np.nanpercentile(taus_R, [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class Signal:
    """What is compared with what architectures are worth.

    Attributes:
        values_SN: values of N architectures with S seeds, better ones higher.
        targets_SN: what the architectures are worth, for each seed.
        seconds: that a value takes.
    """

    name: str
    values_SN: np.ndarray
    targets_SN: np.ndarray
    seconds: float

    def tau(self) -> float:
        """Kendall's tau-b of values and targets, the mean over seeds; NaN where all values of a seed are equal."""
        pairs = zip(self.values_SN, self.targets_SN, strict=True)
        return float(np.mean([kendalltau(value_N, target_N).statistic for value_N, target_N in pairs]))

    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of tau over architectures, percentile."""
        counts_RN = resamples(self.values_SN.shape[1])
        pairs = zip(self.values_SN, self.targets_SN, strict=True)
        return percentiles(np.mean([resampled_taus(*pair, counts_RN) for pair in pairs], axis=0))

    def top_quarter(self) -> float:
        """The fraction of the best quarter that is in the signal's best quarter, the mean over seeds."""
        size = math.ceil(self.values_SN.shape[1] / 4)
        pairs = (
            (set(np.argsort(-row, kind="stable")[:size]) for row in pair)
            for pair in zip(self.values_SN, self.targets_SN, strict=True)
        )
        return float(np.mean([len(chosen & best) / size for chosen, best in pairs]))


def others(targets_SN: np.ndarray) -> np.ndarray:
    """For each seed the mean over the other seeds, (S, N)."""
    # Not by subtraction from the sum, whose rounding would make equal scores different.
    return np.stack([np.delete(targets_SN, seed, axis=0).mean(axis=0) for seed in range(len(targets_SN))])


def measure_missing(measure: Measure, kept: Kept, seeds: Sequence[int], further: Mapping[str, Measure]) -> None:
    """Measure what the file does not have yet; `further` are the measures of further tasks."""
    architectures = [Architecture.from_json(value) for value in kept.settings["architectures"]]
    for place, architecture in enumerate(architectures):
        kept(f"{place}", partial(or_diverged, measure.untrained, architecture))
    for seed, (place, architecture) in product(seeds, enumerate(architectures)):
        kept(f"{place}/{seed}", partial(or_diverged, measure.trained, architecture, seed))
        kept(f"{place}/{seed}/search", partial(or_diverged, measure.searched, architecture, seed))
        for task, other in further.items():
            kept(f"{place}/{seed}/{task}", partial(or_diverged, other.trained, architecture, seed, on_task(task)))


def joined(paths: Sequence[Path]) -> Results:
    """All measurements of files with the same settings.

    Raises:
        BenchmarkError: their settings differ.
    """
    first, *others = (read_results(path, "evidence")["results"] for path in paths)
    for path, results in zip(paths[1:], others, strict=True):
        if different := differing(first["settings"], results["settings"]):
            raise BenchmarkError(f"{path} is of another run than {paths[0]} ({', '.join(different)})")
        first["measured"] = results["measured"] | first["measured"]
    return first


def show(report: Report, results: Results, seeds: Sequence[int]) -> None:
    """Print the table of the architectures that were measured with all these seeds.

    Raises:
        BenchmarkError: there are less than four architectures.
    """
    settings = results["settings"]
    measured = {name: row for name, row in results["measured"].items() if "diverged" not in row}
    further = settings.get("tasks", ())

    def names_of(place: int, seed: int) -> list[str]:
        return [f"{place}", *(f"{place}/{seed}{part}" for part in ("", "/search", *(f"/{task}" for task in further)))]

    complete = [
        place
        for place in range(len(settings["architectures"]))
        if all(name in measured for seed in seeds for name in names_of(place, seed))
    ]
    if len(complete) < 4:
        raise BenchmarkError(
            f"nothing to compare: {len(complete)} architectures measured with all of {len(seeds)} seeds"
        )
    rows = [
        [{key: pair for name in names_of(place, seed) for key, pair in measured[name].items()} for place in complete]
        for seed in seeds
    ]

    def values(name: str) -> tuple[np.ndarray, float]:
        """(S, N), higher is better; and the mean seconds."""
        pairs = np.array([[row[name] for row in line] for line in rows])
        return pairs[..., 0] * (-1 if any(word in name for word in LOWER) else 1), float(pairs[..., 1].mean())

    targets_SN, full_seconds = values(TARGET)
    steps = {TARGET: f" ({settings['full_steps']} steps)", SEARCH: f" ({settings['search_steps']} steps)"}
    of_others_SN = others(targets_SN)
    signals = []
    names = [name for name in rows[0][0] if name not in map(on_task, further)]
    for name in names:
        values_SN, seconds = values(name)
        signals.append(Signal(name + steps.get(name, ""), values_SN, of_others_SN, seconds))
    between = targets_SN.mean(axis=0).std(ddof=1)
    rest = targets_SN - targets_SN.mean(axis=0) - targets_SN.mean(axis=1, keepdims=True) + targets_SN.mean()
    within = np.sqrt((rest**2).sum() / ((len(seeds) - 1) * (len(complete) - 1)))
    report.note(
        f"{settings['name']}: {len(complete)} architectures, {settings['full_steps']} steps ({full_seconds:.0f} s), "
        f"seeds {', '.join(map(str, seeds))}, {settings['threads']} threads; "
        f"diverged: {len(results['measured']) - len(measured)}"
    )
    report.note(
        f"score {targets_SN.mean():.4f}; deviation of the architectures' means {between:.4f}, of one of their scores "
        f"from seed to seed {within:.4f} (without the effect of the seed on all of them)\n"
    )
    report.table(COLUMNS, lines_of(signals))
    if further:
        searched_SN, _ = values(SEARCH)
        on_tasks = [(task, *values(on_task(task))) for task in further]
        report.note(f"\n{SEARCH} on the first task, and {TARGET} on others, whose seconds these are")
        lines = lines_of([Signal(task, searched_SN, others(scores_SN), time) for task, scores_SN, time in on_tasks])
        report.table(("task", *COLUMNS[1:]), lines)


def lines_of(signals: Sequence[Signal]) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each signal, the best first."""
    lines = []
    for signal in signals:
        tau, (low, high) = signal.tau(), signal.interval()
        cells = (f"{tau:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{signal.top_quarter():.0%}", f"{signal.seconds:.3g}")
        lines.append((-math.inf if math.isnan(tau) else tau, (signal.name, *cells)))
    return [line for _, line in sorted(lines, key=lambda line: -line[0])]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo-ffn", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--uniform", metavar="FRACTION", help="space.uniform, such as 1/32; default: the preset's")
    parser.add_argument("--mutation-rate", type=float, help="space.mutation_rate; default: the preset's")
    parser.add_argument("--architectures", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--full-steps", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--further-tasks", nargs="+", default=[], metavar="TASK", help="further tasks to train them on")
    parser.add_argument("--data", help="the folder of the tasks' official files; default: the preset's")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], help="of batches, at least two; default: 1 2 3"
    )
    parser.add_argument(
        "--table", type=Path, nargs="+", metavar="FILE", help="print the table of these files and train nothing"
    )


def run(options: Namespace, report: Report) -> None:
    if len(set(options.seeds)) < 2:
        raise BenchmarkError("--seeds: scores of one seed are compared with those of others: give at least two")
    if options.table:
        show(report, joined(options.table), options.seeds)
        return
    changes = {"space.uniform": options.uniform, "space.mutation_rate": options.mutation_rate, "data": options.data}
    config = load_config(options.preset, {place: value for place, value in changes.items() if value is not None})
    workspace = prepare(config)
    space = plan(config, workspace, "1", None, limits_of(config, workspace)).space
    measure = Measure(workspace, options.full_steps)
    search_steps = measure.evaluator.training_phases[-1].recipe.steps
    if options.full_steps <= search_steps:
        raise BenchmarkError(
            f"--full-steps: must be above {search_steps}, the steps of the search, not {options.full_steps}"
        )
    settings = {
        "name": options.preset,
        "config": config.model_dump(mode="json"),
        "full_steps": options.full_steps,
        "search_steps": search_steps,
        "threads": torch.get_num_threads(),
        "architectures": [architecture.to_json() for architecture in draw(space, options.architectures)],
    }
    alone = {task: config.model_copy(update={"tasks": (task,)}) for task in options.further_tasks}
    further = {task: Measure(prepare(other), options.full_steps) for task, other in alone.items()}
    kept = Kept(report, settings | ({"tasks": options.further_tasks} if further else {}), options.seeds)
    measure_missing(measure, kept, options.seeds, further)
    show(report, {"settings": kept.settings, "measured": kept.measured}, options.seeds)
