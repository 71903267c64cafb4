"""Memory of a worker and of the driver: `python -m benchmarks memory [--trials 1000] [--candidates 16]`. Linux alone.

The worker evaluates candidates of the demo's stage 1 as in a search, one after the other, and is looked at between them
and, from outside, ten times a second while they run. What a candidate needs is shown by pieces for the base model, the
largest one, and for the uniform slice. The driver runs trials that do not sleep (`orchestration`) with
`lanas`, a database file and Ray Tune; once all of them, and once a few after so many that were in the ledger before.

Resident: all pages in memory. Proportional: shared ones in equal parts. Private: those that no other process has, files
too. Anonymous: those of no file, which processes cannot share. Peaks of resident memory are the kernel's own.
"""

import argparse
import functools
import gc
import json
import multiprocessing
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from scipy.stats import linregress
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks.search.orchestration import demo_sampler, demo_space, empty_workspace, fill, sleep
from nas.config.load import load_config
from nas.evaluate import Evaluator, evaluator
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.runner import Cluster, connected, evaluate_trial, run
from nas.stages import BASE_MODEL, UNIFORM, plan, sampler_of
from nas.study import ledger
from nas.study.storage import sqlite_url
from search_spaces.architecture import Architecture

MIB = 2**20
# Seconds between two looks at a process.
INTERVAL = 0.1
# After so many candidates, and trials, there is a row.
CANDIDATES = (1, 2, 4, 8, 16)
PARTS = (0, 0.25, 0.5, 1)
# Candidates until the allocator and the caches of libraries have seen most shapes.
SETTLED = 4
# Trials of a driver that finds a ledger.
FEW = 10

Result = TypeVar("Result")


@dataclass(frozen=True)
class Memory:
    """Bytes of a process: resident, proportional, private, and of no file."""

    rss: int
    pss: int
    private: int
    anonymous: int


def parse(text: str) -> Memory:
    """What `/proc/PID/smaps_rollup` says."""
    kilobytes = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    found = (kilobytes["Rss"], kilobytes["Pss"], private, kilobytes["Anonymous"])
    return Memory(*(1024 * value for value in found))


def memory(pid: int) -> Memory:
    """Of a process that runs."""
    return parse(Path(f"/proc/{pid}/smaps_rollup").read_text())


def peak_rss() -> int:
    """The most bytes that were resident in this process at a time since `forget_peak`."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return 1024 * int(found[1])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def slope(counts: Sequence[int], sizes: Sequence[int]) -> tuple[float, float]:
    """Bytes that each further one takes, by least squares, and the standard error."""
    line = linregress(counts, sizes)
    return float(line.slope), float(line.stderr)


def observed(config: dict[str, Any], *, log: Path, workspace: Workspace, device: str, rungs: Any) -> None:
    """`nas.runner.evaluate_trial`, and a line in `log` before each candidate."""
    gc.collect()
    line = {"pid": os.getpid(), "peak": peak_rss(), "rest": asdict(memory(os.getpid()))}
    evaluator(workspace, device)
    line |= {"loaded": asdict(memory(os.getpid())), "time": time.time()}
    with log.open("a") as file:
        print(json.dumps(line), file=file)
    forget_peak()
    evaluate_trial(config, workspace=workspace, device=device, rungs=rungs)


@contextmanager
def looking(pid_of: Callable[[], int | None]) -> Iterator[list[tuple[float, Memory]]]:
    """Times, and the memory of a process then, from when it is known until the block or the process ends."""
    found: list[tuple[float, Memory]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(INTERVAL):
            try:
                if pid := pid_of():
                    found.append((time.time(), memory(pid)))
            except OSError:  # it has ended
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def read(log: Path) -> list[dict[str, Any]]:
    """The lines of `observed`."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def worker(workspace: Workspace, candidates: int, folder: Path) -> None:
    """Print the table of a worker."""
    config = workspace.config
    stage = plan(config, workspace, "1", None, ())
    study = ledger.open_study(sqlite_url(folder / "study.db"), stage.study, sampler_of(stage, workspace))
    ledger.enqueue_missing(study, stage.starts)
    log, cluster = folder / "worker.jsonl", Cluster(workers=1)
    with connected(cluster), looking(lambda: next((line["pid"] for line in read(log)), None)) as seen:
        run(
            study,
            stage.space,
            workspace,
            cluster,
            trials=candidates + 1,  # what is left of the last one is not looked at
            origin=stage.table.sampler,
            stop=stage.table.stop,
            rungs=stage.table.rungs,
            evaluate=functools.partial(observed, log=log),
            watch=lambda study, number: None,
        )
    lines = read(log)
    assert len({line["pid"] for line in lines}) == 1, "the worker was lost"
    rest = [Memory(**line["rest"]) for line in lines]
    begun = [line["time"] for line in lines]
    inside = [[one.anonymous for at, one in seen if left <= at < right] for left, right in pairwise(begun)]
    peaks = [(line["peak"], max(found)) for line, found in zip(lines[1:], inside, strict=True)]
    print(header("a worker", "peak resident", "peak anonymous"))
    print(row("before the first candidate", rest[0]))
    print(row("with what all candidates need", Memory(**lines[0]["loaded"])))
    done = 0
    for count in (count for count in CANDIDATES if count <= len(peaks)):
        some = f"; peaks of {done + 1} to {count}" if count > done + 1 else ""
        most = (max(column) for column in zip(*peaks[done:count], strict=True))
        print(row(f"after {count}{some}", rest[count], *most))
        done = count
    counts = range(SETTLED, len(lines))
    print(f"anonymous, from {SETTLED} on: {per([rest[count].anonymous for count in counts], counts, 'candidate')}")
    print()
    print(header("the driver of that search"))
    print(row("at its end", memory(os.getpid())))


def header(what: str, *peaks: str) -> str:
    """The head of a table."""
    names = ("resident", "proportional", "private", "anonymous", *peaks)
    return f"| {what}, MiB | {' | '.join(names)} |\n|{'---|' * (1 + len(names))}"


def row(name: str, found: Memory, *peaks: int) -> str:
    """A line of a table."""
    cells = (found.rss, found.pss, found.private, found.anonymous, *peaks)
    return f"| {name} | {' | '.join(f'{cell / MIB:.0f}' for cell in cells)} |"


def per(sizes: Sequence[int], counts: Sequence[int], what: str) -> str:
    """The slope of sizes in words."""
    if len(counts) < 3:
        return f"too few for a slope per {what}"
    found, deviation = slope(counts, sizes)
    return f"{found / 1024:+.1f} ± {deviation / 1024:.1f} KiB per {what}"


@contextmanager
def kept_for_backward(known: set[int]) -> Iterator[dict[int, int]]:
    """Bytes of the memory that the forward pass keeps for the backward pass, by its address: with all that views of it
    show, and once where several operations keep it. What lies at one of the `known` addresses is left out.
    """
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def pieces(own: Evaluator, architecture: Architecture) -> dict[str, int]:
    """Bytes of what the training of a candidate holds at a time: its weights, what of them is learned and so has
    gradients and two moments, and what is kept for the backward pass of its largest batch.
    """
    seen: dict[str, int] = {}
    known: set[int] = set()
    steps: list[int] = []
    with kept_for_backward(known) as kept:

        def after_step(step: int, model: PreTrainedModel) -> None:
            parameters = list(model.parameters())
            known.update(parameter.untyped_storage().data_ptr() for parameter in parameters)
            steps.append(sum(kept.values()))
            kept.clear()
            seen["weights"] = size(parameters)
            seen["gradients"] = size([one for one in parameters if one.requires_grad])

        own.train(architecture, own.training_phases, own.config.seed, after_step)
    return seen | {"moments": 2 * seen["gradients"], "kept for the backward pass": max(steps)}


def size(tensors: Sequence[Tensor]) -> int:
    """In bytes."""
    return sum(tensor.nbytes for tensor in tensors)


def files(workspace: Workspace) -> int:
    """Bytes of the weights and teacher's outputs that a worker maps."""
    outputs = (file for _, folder in workspace.outputs for file in folder.iterdir())
    return sum(file.stat().st_size for file in (workspace.supernet / "model.safetensors", *outputs))


def break_down(workspace: Workspace) -> None:
    """Print the pieces of the first candidates."""
    own = Evaluator(workspace, "cpu")
    starts = {name: architecture for architecture, name, _ in plan(own.config, workspace, "1", None, ()).starts}
    found = {name: pieces(own, starts[name]) for name in (BASE_MODEL, UNIFORM)}
    print(f"| of a candidate, MiB | {' | '.join(found)} |\n|---|---|---|")
    for name in found[BASE_MODEL]:
        print(f"| {name} | {' | '.join(f'{parts[name] / MIB:.0f}' for parts in found.values())} |")
    print(f"| all of these | {' | '.join(f'{sum(parts.values()) / MIB:.0f}' for parts in found.values())} |")
    print(f"mapped files, shared by the workers: {files(workspace) / MIB:.0f} MiB")


def filled(folder: Path, trials: int) -> None:
    """Make a ledger with so many finished trials."""
    space = demo_space()
    study = ledger.open_study(sqlite_url(folder / "study.db"), "stage-1", demo_sampler(space, "lanas"))
    fill(study, space, trials)


def drive(folder: Path, trials: int, marks: Sequence[int]) -> tuple[list[Memory], int]:
    """Run trials that do not sleep until so many of the ledger's have ended. Returns the memory of this process after
    these numbers of trials, and the peak of its resident memory.
    """
    space, workspace = demo_space(), empty_workspace(folder)
    study = ledger.open_study(sqlite_url(folder / "study.db"), "stage-1", demo_sampler(space, "lanas"))
    found: dict[int, Memory] = {}

    def watch(study: Any, number: int) -> None:
        count = len(ledger.finished(study))
        if count in marks and count not in found:
            gc.collect()
            found[count] = memory(os.getpid())

    cluster = Cluster(workers=2)
    with connected(cluster):
        run(
            study,
            space,
            workspace,
            cluster,
            trials=trials,
            origin="lanas",
            rungs=(Fraction(1, 2),),
            evaluate=functools.partial(sleep, seconds=0.0, spread=0.0),
            watch=watch,
        )
    return [found[mark] for mark in marks], peak_rss()


def afresh(function: Callable[..., Result], *arguments: Any) -> Result:
    """What a function returns in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def drivers(trials: int, folder: Path) -> None:
    """Print the tables of drivers."""
    marks = [max(1, round(part * trials)) for part in PARTS]
    (folder / "all").mkdir()
    own, peak = afresh(drive, folder / "all", trials, marks)
    print(header("a driver that ran all trials"))
    for mark, one in zip(marks, own, strict=True):
        print(row(f"after {mark}", one))
    print(f"anonymous: {per([one.anonymous for one in own], marks, 'trial')}; peak resident {peak / MIB:.0f} MiB\n")
    print(header("a driver that found trials in the ledger", "peak resident"))
    there, sizes = [round(part * trials) for part in PARTS], []
    for count in there:
        home = folder / f"{count}"
        home.mkdir()
        afresh(filled, home, count)
        (one,), peak = afresh(drive, home, count + FEW, [count + FEW])
        sizes.append(one.anonymous)
        print(row(f"{count}, and {FEW} more", one, peak), flush=True)
    print(f"anonymous: {per(sizes, there, 'trial')}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of a worker and of the driver.")
    parser.add_argument("--trials", type=int, default=1000, help="of a driver; 0: no driver")
    parser.add_argument("--candidates", type=int, default=CANDIDATES[-1], help="of a worker; 0: no worker")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        if options.candidates:
            workspace = prepare(load_config("demo"))
            worker(workspace, options.candidates, Path(scratch))
            print(flush=True)
            afresh(break_down, workspace)
            print(flush=True)
        if options.trials:
            drivers(options.trials, Path(scratch))


if __name__ == "__main__":
    main()
