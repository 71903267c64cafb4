"""A *way* is one run of all commands from text to export, from an empty cache. Tests disturb it (they kill commands or
press Ctrl-C), continue it, and compare what it leaves with what an undisturbed one leaves. `said` is the file with the
output of a way's command.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.files import DRAFT_PREFIX, STATE_PREFIX, SUMS_PREFIX
from tests.nas.records import results
from tests.nas.tiny_study import PROJECT, states

# In the order in which they are made.
PHASES = (
    "teacher",
    "text",
    "warm-up",
    "cache",
    "stage-1",
    "confirmation",
    "stage-2",
    "stage-3",
    "final training",
    "export",
)
STARTING = "starting"
WITH_WORKERS = ("stage-1", "confirmation", "stage-2", "stage-3")
TRIALS = {"stage-1": 5, "stage-2": 4, "stage-3": 8}


@dataclass(frozen=True)
class Way:
    """The folder of one way from the text to the export, with a cache of its own, and the preset."""

    root: Path
    preset: Path

    @property
    def study(self) -> Path:
        return self.root / "results" / "s"

    def command(self) -> list[object] | None:
        """The next command, which continues what an earlier one began; None if all is done."""
        phase, final = self.phase(), self.root / "final"
        if phase is None:
            return None
        if phase == "export":
            return ["-m", "nas.export", final, "--out", self.root / "export", "--onnx", "--skip-latency"]
        if phase == "final training":
            again = ["--resume"] if (final / "state").exists() else []
            return ["train_final.py", self.study / "architecture.json", "--out", final, *again]
        again = ["--resume"] if (self.study / "config.toml").exists() else []
        given = ["--stage", "all", "--preset", self.preset, "--workers", "1", "--out", self.study.parent]
        return ["-m", "nas.search", *given, "--study", "s", *again]

    def phase(self) -> str | None:
        """What is made next, told from what exists; None if all is done."""
        for folder, phase in {"data": "text", "teachers": "teacher", "texts": "text", "supernets": "warm-up"}.items():
            if not any(not path.name.startswith(".") for path in (self.root / "cache" / folder).glob("*")):
                return phase
        for stage, trials in TRIALS.items():
            if not (self.study / stage / "best.json").exists():
                if stage == "stage-1" and not states(self.study, stage):
                    return "cache"
                counts = states(self.study, stage)
                unfinished = counts["RUNNING"] + counts["WAITING"]
                return stage if unfinished or counts.total() < trials else "confirmation"
        final = self.root / "final"
        if not (final / "metrics.json").exists() or (final / "state").exists():
            return "final training"
        return None if (self.root / "export" / "README.md").exists() else "export"

    def unfinished(self) -> list[Path]:
        """The drafts and states that are left of something unfinished."""
        prefixes = (DRAFT_PREFIX, STATE_PREFIX)
        return [path for path in self.root.rglob("*") if path.name.startswith(prefixes) or path.suffix == ".tmp"]

    def start(self, command: list[object], said: Path) -> subprocess.Popen[bytes]:
        """Start a command that appends what it says to this file."""
        with said.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *map(str, command)],
                cwd=PROJECT,
                env=os.environ | {"FFN_NAS_CACHE": str(self.root / "cache"), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def outcome(self) -> dict[str, Any]:
        """Everything that the way leaves: ledgers and files, without times, and the checksums that have times."""
        kept: dict[str, Any] = {}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root)
            if path.is_file() and name.parts[0] != "results" and not path.name.startswith(SUMS_PREFIX):
                kept[str(name)] = path.read_bytes()
        for name in ("final/metrics.json", "export/metrics.json"):
            facts = json.loads(kept[name])
            for row in facts["models"].values():
                for key in [key for key in row if key.startswith(("latency", "speed"))]:
                    del row[key]
            kept[name] = facts
        kept["export/README.md"] = None  # tells latencies
        return kept | results(self.study)


def undisturbed(way: Way, said: Path) -> dict[str, float]:
    """Go the whole way without a kill; returns the seconds of every phase, and of the time before a command works."""
    seconds = dict.fromkeys((STARTING, *PHASES), 0.0)
    while (command := way.command()) is not None:
        said.write_bytes(b"")
        process = way.start(command, said)
        try:
            before = time.monotonic()
            while process.poll() is None:
                time.sleep(0.02)
                phase = way.phase() if is_working(way, said) else STARTING
                now = time.monotonic()
                if phase is not None:
                    seconds[phase] += now - before
                before = now
        finally:
            process.kill()
        assert process.returncode == 0, said.read_text()
    return seconds


def is_working(way: Way, said: Path) -> bool:
    """Whether a command has loaded its libraries: it has said something, or begun to write."""
    return said.stat().st_size > 0 or any(way.root.glob(f"{DRAFT_PREFIX}*"))


def reached(way: Way, said: Path, phase: str) -> bool:
    """Whether a command is at work in a phase, or beyond it."""
    now = way.phase()
    return is_working(way, said) and (now is None or PHASES.index(now) >= PHASES.index(phase))


def phase_now(way: Way, said: Path) -> str:
    """In which phase a command is."""
    return (way.phase() or PHASES[-1]) if is_working(way, said) else STARTING


def assert_undisturbed(way: Way, expected: dict[str, Any]) -> None:
    """Assert that the way has left what an undisturbed one leaves, and nothing unfinished."""
    left = way.outcome()
    assert left.keys() == expected.keys()
    assert not [name for name in expected if left[name] != expected[name]]
    assert not way.unfinished()
