"""Memory of a worker that trains and evaluates candidates of the demo's stage 1, one after the other. Linux alone.

It is read between the candidates; `orchestration` measures the driver. Resident: all pages in memory. Proportional:
shared pages in equal parts. Private: the pages that no other process has. The peak of resident memory is the kernel's.
"""

import functools
import gc
import json
import os
import resource
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from scipy.stats import linregress

from benchmarks.common import Report
from nas.config.load import load_config
from nas.planning.stages import plan, sampler_of
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.study import ledger
from nas.study.storage import sqlite_url
from nas.workers.cluster import Cluster, ray_session
from nas.workers.runner import evaluate_trial, evaluator_of
from nas.workers.runner import run as run_trials

MIB = 2**20
# The numbers of candidates with which there is a row.
CANDIDATES = (1, 2, 4, 8, 16, 40)
# Candidates until the allocator and the caches of libraries have seen most shapes.
SETTLED = 4
COLUMNS = ("resident", "proportional", "private")
# Bytes by the names of `COLUMNS`.
Memory = dict[str, int]


def memory(pid: int) -> Memory:
    """The memory of a running process."""
    sizes = psutil.Process(pid).memory_full_info()
    return dict(zip(COLUMNS, (sizes.rss, sizes.pss, sizes.uss), strict=True))


def row_of(name: str, sizes: Memory) -> list[str]:
    """A row of a table, in MiB."""
    return [name, *(f"{size / MIB:.0f}" for size in sizes.values())]


def growth_per(counts: Sequence[int], sizes: Sequence[int], what: str) -> str:
    """By how much sizes grow with the count, by least squares, with the standard error."""
    if len(counts) < 3:
        return f"too few for a slope per {what}"
    line = linregress(counts, sizes)
    return f"{line.slope / 1024:+.1f} ± {line.stderr / 1024:.1f} KiB per {what}"


def evaluate_and_log(config: dict[str, Any], *, log: Path, workspace: Workspace, device: str, rungs: Any) -> None:
    """Evaluate a trial as `evaluate_trial` does, after a line in `log` with this process's memory."""
    gc.collect()
    line = {"pid": os.getpid(), "between": memory(os.getpid())}
    evaluator_of(workspace, device)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line |= {"loaded": memory(os.getpid()), "peak": peak}
    with log.open("a") as file:
        print(json.dumps(line), file=file)
    evaluate_trial(config, workspace=workspace, device=device, rungs=rungs)


def measure(workspace: Workspace, candidates: int, folder: Path) -> list[dict[str, Any]]:
    """Run stage 1 with one worker; returns the lines of `evaluate_and_log`, before each candidate and one more."""
    stage = plan(workspace.config, workspace, "1", None, ())
    study = ledger.open_study(sqlite_url(folder / "study.db"), stage.study, sampler_of(stage, workspace))
    ledger.enqueue_missing(study, stage.space, stage.baselines)
    log, cluster = folder / "worker.jsonl", Cluster(workers=1)
    with ray_session(cluster):
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
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len({line["pid"] for line in lines}) == 1, "the worker was lost"
    return lines


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo-ffn", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--candidates", type=int, default=16, help="default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    workspace = prepare(load_config(options.preset))
    with tempfile.TemporaryDirectory() as scratch:
        lines = measure(workspace, options.candidates, Path(scratch))
    rows = [
        row_of("before the first candidate", lines[0]["between"]),
        row_of("with what all candidates need", lines[0]["loaded"]),
    ]
    for count in (count for count in CANDIDATES if count < len(lines)):
        row = {**lines[count]["between"], "peak so far": lines[count]["peak"]}
        rows.append(row_of(f"after {count}", row))
    report.table(("a worker, MiB", *COLUMNS, "peak resident so far"), rows)
    counts = range(SETTLED, len(lines))
    growth = growth_per(counts, [lines[count]["between"]["private"] for count in counts], "candidate")
    report.note(f"private, from {SETTLED} on: {growth}")
    driver = memory(os.getpid())
    report.table(("the driver of that search, MiB", *COLUMNS), [row_of("at its end", driver)])
    report.save({"worker": lines, "driver": driver}, seeds=[workspace.config.seed])
