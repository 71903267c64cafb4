"""Memory of a worker and of the driver. Linux alone.

The worker evaluates candidates of the demo's stage 1 as in a search, one after the other. Its memory is read between
them and, from outside, ten times a second while they run. What a candidate needs is shown by parts for the base model,
the largest candidate, and for the uniform slice. The driver runs trials that do not sleep (see `orchestration`) with
`lanas`, a database file and Ray Tune: once all of them, and once a few after so many that were in the ledger before.
--read-back measures the commands that read a study, on a long one.

Resident: all pages in memory. Proportional: shared pages in equal parts. Private: the pages that no other process has,
those of files too. Anonymous: the pages of no file, which processes cannot share. Peaks of resident memory are the
kernel's own.
"""

import functools
import gc
import json
import os
import tempfile
import time
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from scipy.stats import linregress

from benchmarks.memory.process_memory import MIB, Memory, forget_peak, memory, peak_rss, watching
from benchmarks.memory.read_back import read_back
from benchmarks.memory.training_memory import training_memory
from benchmarks.processes import in_new_process
from benchmarks.report import Report
from benchmarks.search.orchestration import demo_space, demo_study, fill, run_sleeping
from nas.cluster import Cluster, ray_session
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.runner import evaluate_trial, evaluator_of
from nas.runner import run as run_trials
from nas.stages import BASE_MODEL, UNIFORM, plan, sampler_of
from nas.study import ledger
from nas.study.description import Parameters
from nas.study.notes import add_note
from nas.study.storage import sqlite_url

# The numbers of candidates, and the shares of a driver's trials, with which there is a row.
CANDIDATES = (1, 2, 4, 8, 16)
SHARES = (0, 0.25, 0.5, 1)
MARKS = tuple(eighth / 8 for eighth in range(1, 9))
# Candidates until the allocator and the caches of libraries have seen most shapes.
SETTLED = 4
# Trials of a driver that begins with a ledger.
FEW = 10
COLUMNS = ("resident", "proportional", "private", "anonymous")


def evaluate_and_log(config: dict[str, Any], *, log: Path, workspace: Workspace, device: str, rungs: Any) -> None:
    """Evaluate a trial as `nas.runner.evaluate_trial` does, after a line in `log` with this process's memory."""
    gc.collect()
    line = {"pid": os.getpid(), "peak": peak_rss(), "between": asdict(memory(os.getpid()))}
    evaluator_of(workspace, device)
    line |= {"loaded": asdict(memory(os.getpid())), "time": time.time()}
    with log.open("a") as file:
        print(json.dumps(line), file=file)
    forget_peak()
    evaluate_trial(config, workspace=workspace, device=device, rungs=rungs)


def read(log: Path) -> list[dict[str, Any]]:
    """The lines of `evaluate_and_log`."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def measure_worker(workspace: Workspace, candidates: int, folder: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Run stage 1 with one worker.

    Returns:
        the lines of `evaluate_and_log`, before each candidate and one more, and the most anonymous bytes during each.
    """
    config = workspace.config
    stage = plan(config, workspace, "1", None, ())
    study = ledger.open_study(sqlite_url(folder / "study.db"), stage.study, sampler_of(stage, workspace))
    ledger.enqueue_missing(study, Parameters.of(stage.space), stage.baselines)
    log, cluster = folder / "worker.jsonl", Cluster(workers=1)
    with ray_session(cluster), watching(lambda: next((line["pid"] for line in read(log)), None)) as samples:
        run_trials(
            study,
            stage.space,
            workspace,
            cluster,
            trials=candidates + 1,  # after the last one there is no line
            origin=stage.table.sampler,
            stop=stage.table.stop,
            rungs=stage.table.rungs,
            evaluate=functools.partial(evaluate_and_log, log=log),
            on_trial=lambda study, number: None,
        )
    lines = read(log)
    assert len({line["pid"] for line in lines}) == 1, "the worker was lost"
    begins = [line["time"] for line in lines]
    peaks = [max(of.anonymous for at, of in samples if begin <= at < end) for begin, end in pairwise(begins)]
    return lines, peaks


def worker(report: Report, workspace: Workspace, candidates: int, folder: Path) -> dict[str, Any]:
    """Measure a worker and the driver of its search, print their tables, and return the raw numbers."""
    lines, anonymous_peaks = measure_worker(workspace, candidates, folder)
    between = [Memory(**line["between"]) for line in lines]
    peaks = list(zip((line["peak"] for line in lines[1:]), anonymous_peaks, strict=True))
    rows = [
        row("before the first candidate", between[0]),
        row("with what all candidates need", Memory(**lines[0]["loaded"])),
    ]
    done = 0
    for count in (count for count in CANDIDATES if count <= len(peaks)):
        span = f"; peaks of {done + 1} to {count}" if count > done + 1 else ""
        most = (max(column) for column in zip(*peaks[done:count], strict=True))
        rows.append(row(f"after {count}{span}", between[count], *most))
        done = count
    report.table(("a worker, MiB", *COLUMNS, "peak resident", "peak anonymous"), rows)
    counts = range(SETTLED, len(lines))
    growth = growth_per([between[count].anonymous for count in counts], counts, "candidate")
    report.note(f"anonymous, from {SETTLED} on: {growth}")
    driver = memory(os.getpid())
    report.table(("the driver of that search, MiB", *COLUMNS), [row("at its end", driver)])
    return {"worker": lines, "most anonymous bytes of candidates": anonymous_peaks, "driver": asdict(driver)}


def row(name: str, of: Memory, *peaks: int) -> list[str]:
    """A row of a table, in MiB."""
    return [name, *(f"{size / MIB:.0f}" for size in (of.rss, of.pss, of.private, of.anonymous, *peaks))]


def slope(counts: Sequence[int], sizes: Sequence[int]) -> tuple[float, float]:
    """Bytes by which sizes grow with the count, by least squares, and the standard error."""
    line = linregress(counts, sizes)
    return float(line.slope), float(line.stderr)


def growth_per(sizes: Sequence[int], counts: Sequence[int], what: str) -> str:
    """The slope of sizes in words."""
    if len(counts) < 3:
        return f"too few for a slope per {what}"
    per_count, error = slope(counts, sizes)
    return f"{per_count / 1024:+.1f} ± {error / 1024:.1f} KiB per {what}"


def parts_of_candidates(workspace: Workspace) -> dict[str, dict[str, int]]:
    """Bytes that the training of the base model and that of the uniform slice hold, by what they are for."""
    workers_evaluator = TrainedEvaluator(workspace, "cpu")
    baselines = {
        name: architecture
        for architecture, name, _ in plan(workers_evaluator.config, workspace, "1", None, ()).baselines
    }
    return {name: training_memory(workers_evaluator, baselines[name]) for name in (BASE_MODEL, UNIFORM)}


def candidates(report: Report, workspace: Workspace) -> dict[str, Any]:
    """Measure the parts of candidates, print them, and return the raw numbers."""
    parts = in_new_process(parts_of_candidates, workspace)
    rows = [(name, *(f"{of_one[name] / MIB:.0f}" for of_one in parts.values())) for name in parts[BASE_MODEL]]
    rows.append(("all of these", *(f"{sum(of_one.values()) / MIB:.0f}" for of_one in parts.values())))
    report.table(("a candidate, MiB", *parts), rows)
    outputs = (file for _, folder in workspace.outputs for file in folder.iterdir())
    mapped = sum(file.stat().st_size for file in (workspace.supernet / "model.safetensors", *outputs))
    report.note(f"mapped files, which the workers share: {mapped / MIB:.0f} MiB\n")
    return {"parts of candidates": parts, "mapped files": mapped}


def fill_ledger(folder: Path, trials: int) -> None:
    """Make a ledger with so many finished trials."""
    space = demo_space()
    fill(demo_study(folder, space, "lanas"), space, trials)


@dataclass(frozen=True)
class Mark:
    """How a driver is when so many trials have ended.

    Attributes:
        seconds: processor seconds of the driver since the previous mark.
        driver: its memory.
        workers: the most anonymous bytes of a worker.
        database: bytes of the database's files.
    """

    trials: int
    seconds: float
    driver: Memory
    workers: int
    database: int


def drive(folder: Path, trials: int, marks: Sequence[int]) -> tuple[list[Mark], int]:
    """Run trials that do not sleep until so many of the ledger have ended, and write a note for each, as a search does.

    Returns:
        how this process was after these numbers of trials, and the peak of its resident memory.
    """
    space, log = demo_space(), folder / "log"
    study = demo_study(folder, space, "lanas")
    found: dict[int, Mark] = {}
    began = time.process_time()

    def on_trial(study: Any, number: int) -> None:
        nonlocal began
        add_note(study, number)
        count = len(ledger.finished(study))
        if count in marks and count not in found:
            gc.collect()
            seconds = time.process_time() - began
            pids = {int(line.split()[0]) for line in log.read_text().splitlines()[-20:]}
            workers = max(memory(pid).anonymous for pid in pids)
            database = sum(file.stat().st_size for file in folder.glob("study.db*"))
            found[count] = Mark(count, seconds, memory(os.getpid()), workers, database)
            began = time.process_time()

    run_sleeping(
        study, space, folder, trials=trials, sampler="lanas", on_trial=on_trial, seconds=0.0, spread=0.0, log=log
    )
    return [found[mark] for mark in marks], peak_rss()


def drivers(report: Report, trials: int, resumed: bool, folder: Path) -> dict[str, Any]:
    """Measure drivers, print their tables, and return the raw numbers."""
    (folder / "all").mkdir()
    counts = sorted({max(1, round(share * trials)) for share in MARKS})
    after, peak = in_new_process(drive, folder / "all", trials, counts)
    rows = [
        (
            *row(f"after {mark.trials}", mark.driver),
            f"{mark.workers / MIB:.0f}",
            f"{1000 * mark.seconds / (mark.trials - before):.1f}",
            f"{mark.database / MIB:.1f}",
        )
        for before, mark in zip([0, *counts], after, strict=False)
    ]
    columns = (*COLUMNS, "a worker, anonymous", "processor ms per trial", "database")
    report.table(("a driver that ran all trials, MiB", *columns), rows)
    late = [mark for mark in after if mark.trials >= trials / 2]
    for name, sizes in (
        ("the driver", [mark.driver.anonymous for mark in late]),
        ("a worker", [mark.workers for mark in late]),
        ("the database", [mark.database for mark in late]),
    ):
        report.note(f"{name}, second half: {growth_per(sizes, [mark.trials for mark in late], 'trial')}")
    report.note(f"peak resident {peak / MIB:.0f} MiB\n")
    ran = {"driver that ran all trials": [asdict(mark) for mark in after], "its peak": peak}
    return ran | (drivers_that_resume(report, trials, folder) if resumed else {})


def drivers_that_resume(report: Report, trials: int, folder: Path) -> dict[str, Any]:
    """Measure drivers that begin with trials in the ledger, print their table, and return the raw numbers."""
    rows, before, resumed = [], [round(share * trials) for share in SHARES], {}
    for count in before:
        home = folder / f"{count}"
        home.mkdir()
        in_new_process(fill_ledger, home, count)
        (mark,), home_peak = in_new_process(drive, home, count + FEW, [count + FEW])
        resumed[count] = {**asdict(mark.driver), "peak": home_peak}
        rows.append(row(f"{count}, and {FEW} more", mark.driver, home_peak))
        report.progress(f"a driver that began with {count} trials: measured")
    report.table(("a driver that began with trials in the ledger, MiB", *COLUMNS, "peak resident"), rows)
    report.note(f"anonymous: {growth_per([of['anonymous'] for of in resumed.values()], before, 'trial')}")
    return {"drivers that began with trials": resumed}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=1000, help="of a driver; 0: no driver; default: %(default)s")
    parser.add_argument(
        "--resumed",
        action=BooleanOptionalAction,
        default=True,
        help="also drivers that begin with trials in the ledger; default: %(default)s",
    )
    parser.add_argument(
        "--read-back",
        type=int,
        default=0,
        metavar="N",
        help="read a study of N trials back, as nas.report, nas.pick, python -m nas and the dashboard do; default: 0",
    )
    parser.add_argument(
        "--candidates", type=int, default=CANDIDATES[-1], help="of a worker; 0: no worker; default: %(default)s"
    )


def run(options: Namespace, report: Report) -> None:
    results: dict[str, Any] = {}
    seed = load_config("demo").seed
    with tempfile.TemporaryDirectory() as scratch:
        if options.candidates:
            workspace = prepare(load_config("demo"))
            results |= worker(report, workspace, options.candidates, Path(scratch))
            results |= candidates(report, workspace)
        if options.trials:
            results |= drivers(report, options.trials, options.resumed, Path(scratch))
        if options.read_back:
            results |= read_back(report, options.read_back, Path(scratch))
        report.save(results, seeds=[seed])
