"""What all benchmarks share: paired measurements and their statistics, processes, and the report with its raw numbers.

What is compared takes turns: every round measures all sides, and ratios and differences are taken within a round, so
that whatever else the machine does in the meantime falls on all of them.
"""

import json
import multiprocessing
import os
import platform
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, TypeVar

import numpy as np
import torch
import transformers
from rich import box
from rich.table import Table

from distill.training.progress import terminal
from foundation.errors import UserError
from foundation.files import write_text
from nas.latency.settings import device_name

Side = TypeVar("Side")
Value = TypeVar("Value")
# The scores "before" and "after" a training, and further figures by name. Lists of figures are saved, but not printed.
Row = dict[str, Any]

# Forked processes would inherit the threads' state and the memory of this one.
_SPAWN = multiprocessing.get_context("spawn")
# What is read from the environment and changes how fast numerical libraries are.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "MALLOC_MMAP_THRESHOLD_")


class BenchmarkError(UserError):
    """A benchmark cannot be run with these options or files."""


def take_turns(
    sides: Mapping[Side, Callable[[int], Value]],
    rounds: Sequence[int],
    *,
    warmup: int = 0,
    on_value: Callable[[Side, int, Value], object] = lambda side, number, value: None,
) -> dict[Side, list[Value]]:
    """Measure every side once a round; the order is reversed in every second round, so that no side is always first.

    Args:
        sides: what is called for each side, with the number (or the seed) of the round.
        rounds: the numbers (or seeds) of the rounds.
        warmup: how many further rounds come first, with the number of the first round, whose values are dropped.
        on_value: called after every measurement that is kept, with the side, the number of the round and the value.

    Returns:
        the values of each side, in the order of the rounds.
    """
    values: dict[Side, list[Value]] = {side: [] for side in sides}
    for turn, number in enumerate([rounds[0]] * warmup + list(rounds)):
        for side in list(sides)[:: -1 if turn % 2 else 1]:
            value = sides[side](number)
            if turn >= warmup:
                values[side].append(value)
                on_value(side, number, value)
    return values


def timed(function: Callable[[], Value]) -> tuple[Value, float]:
    """What the function returns, and the seconds that it took."""
    started = time.perf_counter()
    value = function()
    return value, time.perf_counter() - started


@dataclass(frozen=True)
class Summary:
    """A sample in five numbers.

    Attributes:
        lower: the first quartile.
        upper: the third quartile.
        error: the standard error of the mean, s / sqrt(n); 0 for a single value.
    """

    median: float
    lower: float
    upper: float
    mean: float
    error: float

    def with_error(self, digits: int = 2, sign: str = "") -> str:
        """Mean and standard error, for few rounds and for scores over seeds."""
        return f"{self.mean:{sign}.{digits}f} ± {self.error:.{digits}f}"

    def with_quartiles(self, digits: int = 2) -> str:
        """Median and quartiles, for many rounds, of which some were disturbed."""
        return f"{self.median:.{digits}f} ({self.lower:.{digits}f} to {self.upper:.{digits}f})"


def summarise(values: Sequence[float]) -> Summary:
    """The five numbers of a sample of at least one value."""
    lower, upper = np.quantile(values, (0.25, 0.75))
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Summary(median(values), float(lower), float(upper), mean(values), error)


def ratio(values: Iterable[float], others: Iterable[float]) -> Summary:
    """The ratios of two sides, each within a round."""
    return summarise([value / other for value, other in zip(values, others, strict=True)])


def difference(values: Iterable[float], others: Iterable[float]) -> Summary:
    """The differences of two sides, each within a round."""
    return summarise([value - other for value, other in zip(values, others, strict=True)])


def start_server(serve: Callable[..., None], *arguments: Any) -> Connection:
    """Start a process that runs `serve(connection, *arguments)`, and wait until it has sent something.

    The process should end when it receives None.

    Returns:
        the other end of the connection.
    """
    ours, theirs = multiprocessing.Pipe()
    _SPAWN.Process(target=serve, args=(theirs, *arguments), daemon=True).start()
    theirs.close()  # so that reading fails when the process has died, instead of waiting for ever
    ours.recv()
    return ours


class Report:
    """Prints tables and progress, and keeps the raw numbers in a file.

    Args:
        name: of the benchmark.
        arguments: its command line, after the name.
        options: the values of all its options.
        path: the file of the raw numbers.
    """

    def __init__(self, name: str, arguments: Sequence[str], options: Mapping[str, Any], path: Path) -> None:
        self.name, self.path = name, path
        self.options = json.loads(json.dumps(dict(options), default=str))
        self.command = shlex.join(["python", "-m", "benchmarks", name, *arguments])
        self.console = terminal()
        # Progress goes to stderr, so that it is not in the output that one pastes or pipes.
        self.status = terminal(stderr=True)
        self.load_before = os.getloadavg()[0]
        self.saved = False

    def progress(self, text: str) -> None:
        """Say on stderr what has just been done."""
        self.status.print(text)

    def note(self, text: str = "") -> None:
        """Print a line of the result."""
        self.console.print(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
        """Print a table, in Markdown so that it can be pasted into results/."""
        if title:
            self.console.print(f"\n{title}\n")
        self.console.print(markdown(columns, rows))
        self.console.print()

    def save(self, results: Any, *, seeds: Sequence[int] = ()) -> None:
        """Write the raw numbers with all that a reader needs to judge or to repeat them.

        Args:
            results: values that JSON can hold.
            seeds: all seeds that decided the results.
        """
        self.saved = True
        content = {
            "benchmark": self.name,
            "command": self.command,
            "options": self.options,
            "seeds": list(seeds),
            "machine": machine(self.load_before),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "results": results,
        }
        write_text(self.path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


class Kept:
    """Measurements by name, which are in the report's file as soon as they are made. What the file has already is not
    measured again, so that an interrupted run goes on, and seeds can be added.

    Args:
        settings: what all measurements of the file have in common.

    Raises:
        BenchmarkError: the file is of a run with other settings.
    """

    def __init__(self, report: Report, settings: Mapping[str, Any], seeds: Sequence[int]) -> None:
        self.report, self.seeds = report, seeds
        self.settings = json.loads(json.dumps(settings))  # as it is read again
        self.measured: dict[str, Any] = {}
        if report.path.exists():
            results = read_results(report.path, report.name)["results"]
            if different := differing(self.settings, results["settings"]):
                names = ", ".join(different)
                raise BenchmarkError(f"{report.path} is of another run ({names}): give another --json")
            self.measured = results["measured"]

    def __call__(self, name: str, measure: Callable[[], Any]) -> Any:
        """The measurement of this name, made if it is not there; a value as JSON gives it back."""
        if name not in self.measured:
            value, seconds = timed(measure)
            self.measured[name] = json.loads(json.dumps(value))
            self.report.save({"settings": self.settings, "measured": self.measured}, seeds=self.seeds)
            result = f"{value:.4f}, " if isinstance(value, float) else ""
            self.report.progress(f"{name}: {result}{seconds:.0f} s")
        return self.measured[name]


def differing(settings: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """The names of the settings whose values differ."""
    return [name for name in settings if others.get(name) != settings[name]]


def compare(
    settings: Mapping[str, Side],
    baseline: str,
    run: Callable[[Side, int], Row],
    seeds: Sequence[int],
    report: Report,
    fixed: Mapping[str, Any],
) -> dict[str, list[Row]]:
    """Run all settings of a training with every seed, and print a line for each: means over the seeds, and differences
    from the baseline between scores of one seed.

    Args:
        run: trains with a setting and a seed.
        fixed: what all runs have in common.

    Returns:
        the rows of each setting, in the order of the seeds.
    """
    kept = Kept(report, fixed, seeds)

    def row(name: str, seed: int) -> Row:
        result: Row = kept(f"{name}, seed {seed}", lambda: run(settings[name], seed))
        return result

    rows = take_turns({name: partial(row, name) for name in settings}, seeds)
    reference = [row["after"] for row in rows[baseline]]
    others = [name for name, value in rows[baseline][0].items() if not isinstance(value, list)]
    others = [name for name in others if name not in ("before", "after")]
    lines = []
    for name, of_setting in rows.items():
        after = [row["after"] for row in of_setting]
        cells = (summarise(after).with_error(4), difference(after, reference).with_error(4, "+"))
        further = (f"{mean(row[key] for row in of_setting):.2f}" for key in others)
        lines.append((name, f"{mean(row['before'] for row in of_setting):.4f}", *cells, *further))
    report.table(("setting", "before", "after", f"minus {baseline}", *others), lines)
    return rows


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown, its columns as wide as their widest cells."""
    table = Table(box=box.MARKDOWN)
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=True, justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(str, row))
    console = terminal(width=1000, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.strip() for line in capture.get().splitlines() if line.strip())


def machine(load_before: float) -> dict[str, Any]:
    """The processor, the threads of torch, and how busy the machine was.

    A load average (runnable threads in the last minute) that is above the number of threads that a benchmark uses says
    that it shared the machine with other work.
    """
    return {
        "processor": device_name("cpu"),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "load average": {"before": load_before, "after": os.getloadavg()[0]},
    }


def squad_articles(folder: Path, split: str) -> list[Any]:
    """The articles of a split of SQuAD.

    Raises:
        BenchmarkError: the folder has no files of the split.
    """
    files = sorted(folder.glob(f"{split}*.json"))
    if not files:
        raise BenchmarkError(f"--squad: there is no {split}*.json in {folder}")
    return [article for file in files for article in json.loads(file.read_text(encoding="utf-8"))["data"]]


def read_results(path: Path, benchmark: str) -> dict[str, Any]:
    """A file of raw numbers, whole.

    Raises:
        BenchmarkError: it is not a file that the benchmark of this name wrote.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path}: {error}") from error
    if not isinstance(content, dict) or content.get("benchmark") != benchmark:
        raise BenchmarkError(f"{path}: not written by `python -m benchmarks {benchmark}`")
    return content
