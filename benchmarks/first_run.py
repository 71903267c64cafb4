"""How long the demo takes from nothing, how long until its first trial from full caches, and its peak memory.

    python -m benchmarks.first_run [--out DIR]

Runs `python -m nas.search --stage 1` with an empty cache folder, then once more as another study with the caches
there, which is stopped at its first trial. Memory is the proportional set size of the process and all its descendants,
looked at every second. Needs psutil (extra `test`).
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import optuna
import psutil
from optuna.trial import TrialState

from nas.study import ledger
from nas.study.storage import sqlite_url


def memory(process: psutil.Process) -> int:
    """Bytes in use by a process and its descendants; pages that several share count once."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def watch(study: str, out: Path, environment: dict[str, str], stop_at_first: bool) -> dict[str, float]:
    """Run the search; seconds until the first trial began and until the end, and the peak memory in GiB."""
    command = [sys.executable, "-m", "nas.search", "--stage", "1", "--study", study, "--out", str(out)]
    begun = time.time()
    process = subprocess.Popen(command, env=environment)
    facts = {"first_trial": 0.0, "peak_gib": 0.0}
    database = out / study / "study.db"
    while process.poll() is None:
        time.sleep(1)
        try:
            facts["peak_gib"] = max(facts["peak_gib"], memory(psutil.Process(process.pid)) / 2**30)
        except psutil.NoSuchProcess:
            break
        if not facts["first_trial"] and database.exists():
            running = trials(database, (TrialState.RUNNING, TrialState.COMPLETE))
            starts = [trial.datetime_start.timestamp() for trial in running if trial.datetime_start]
            if starts:
                facts["first_trial"] = min(starts) - begun
                if stop_at_first:
                    process.kill()
    facts["end"] = time.time() - begun
    if process.wait() != (-signal.SIGKILL if stop_at_first else 0):
        sys.exit(f"the search ended with status {process.returncode}")
    return facts


def trials(database: Path, states: tuple[TrialState, ...]) -> list[optuna.trial.FrozenTrial]:
    """The trials of stage 1 in these states; none while the study is being made."""
    try:
        study = optuna.load_study(study_name="stage-1", storage=sqlite_url(database))
    except (KeyError, RuntimeError):
        return []
    return study.get_trials(deepcopy=False, states=states)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the demo from nothing and from full caches.")
    parser.add_argument("--out", type=Path, help="keep the studies here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch) / "results"
        environment = os.environ | {"FFN_NAS_CACHE": str(Path(scratch) / "cache")}
        first = watch("first", out, environment, stop_at_first=False)
        report(first, trials(out / "first" / "study.db", (TrialState.COMPLETE,)))
        second = watch("second", out, environment, stop_at_first=True)
    print(f"from full caches: first trial after {second['first_trial']:.0f} s")


def report(first: dict[str, float], done: list[optuna.trial.FrozenTrial]) -> None:
    """Print what the run from nothing took and found."""
    inside = [trial for trial in done if trial.user_attrs[ledger.IN_BOX]]
    scores = [(trial.value or 0.0) for trial in inside]
    errors = [trial.user_attrs["standard_error"] for trial in inside]
    print(f"\n{os.cpu_count()} processors, {len(done)} candidates trained")
    print(f"from nothing: first trial after {first['first_trial']:.0f} s, done after {first['end']:.0f} s")
    print(f"peak memory of all processes together: {first['peak_gib']:.2f} GiB")
    spread = max(scores) - min(scores)
    print(
        f"scores inside the budget from {min(scores):.4f} to {max(scores):.4f}: a spread of {spread:.4f}, "
        f"{spread / max(errors):.1f} times the largest standard error of a score ({max(errors):.4f})"
    )


if __name__ == "__main__":
    main()
