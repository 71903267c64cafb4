"""`kill -9` at random moments on the whole way: text, teacher, warm-up, cache, all stages, confirmation, final training
and export, from an empty cache. After each kill the way is continued, and it ends as one that was never disturbed.
"""

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.nas.processes import family, kill_all, still_running, workers
from tests.nas.records import lost_before
from tests.nas.tiny_study import TIMEOUT
from tests.trust.conftest import Undisturbed
from tests.trust.way import PHASES, STARTING, WITH_WORKERS, Way, assert_undisturbed, phase_now, reached
from tests.trust_counts import Cases


@dataclass
class Kill:
    """A kill that is to come: in which phase, of what, and after which fraction of the phase's seconds."""

    phase: str
    target: str
    fraction: float


def strike(target: str, process: subprocess.Popen[bytes], way: Way, seen: set[psutil.Process]) -> str | None:
    """Kill the driver, a worker, or all processes at once; returns what was killed, None if there is no worker yet.
    `seen` gets the processes.
    """
    everyone = family(process.pid)
    of_ray = workers(everyone)
    if target == "worker" and lost_before(way.study):
        target = "all"
    if target == "worker" and not of_ray:
        return None
    kill_all({"driver": everyone[:1], "worker": of_ray[:1], "all": everyone}[target])
    seen.update(everyone)
    return target


def disturbed(way: Way, said: Path, kills: list[Kill], seconds: dict[str, float], counts: Cases) -> None:
    """Go the whole way with these kills, and continue after each of them."""
    seen: set[psutil.Process] = set()
    while (command := way.command()) is not None:
        said.write_bytes(b"")
        process = way.start(command, said)
        begun, moment, struck = time.monotonic(), None, None
        try:
            while process.poll() is None:
                time.sleep(0.02)
                if not kills:
                    continue
                if moment is None and (kills[0].phase == STARTING or reached(way, said, kills[0].phase)):
                    moment = time.monotonic() + kills[0].fraction * seconds[kills[0].phase]
                if moment is None or time.monotonic() < moment:
                    continue
                phase = phase_now(way, said)
                struck = strike(kills[0].target, process, way, seen)
                if struck is None and phase in WITH_WORKERS:
                    continue  # soon there is a worker
                struck = struck or strike("driver", process, way, seen)
                kills.pop(0)
                counts[f"{phase}: {struck} killed"] += 1
                print(f"{phase}: {struck} killed {time.monotonic() - begun:.0f} s after the start", flush=True)
                moment = None
                if struck != "worker":
                    process.wait(TIMEOUT)
        finally:
            process.kill()
        assert struck in ("driver", "all") or process.returncode == 0, said.read_text()
        assert not still_running(seen, TIMEOUT)
    assert "Traceback" not in said.read_text()


@pytest.mark.slow
@pytest.mark.trust
def test_killed_on_the_whole_way(whole_way: Undisturbed, tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """`kill -9` at a random moment in up to ten phases of an end-to-end run."""
    counts = cases(sample=3, full=100)
    rng = random.Random(0)
    done = 0
    while done < counts.wanted:
        phases = sorted(rng.sample(range(len(PHASES)), min(len(PHASES), counts.wanted - done)))
        kills = [
            Kill(
                PHASES[number],
                rng.choice(("driver", "worker", "all") if PHASES[number] in WITH_WORKERS else ("driver", "all")),
                rng.random(),
            )
            for number in phases
        ]
        loading = rng.randrange(len(kills))
        kills[loading].phase = STARTING if loading % 2 else kills[loading].phase
        way = Way(tmp_path / f"way-{done}", whole_way.preset)
        wanted = len(kills)
        disturbed(way, tmp_path / "said.txt", kills, whole_way.seconds, counts)
        done += wanted - len(kills)
        assert_undisturbed(way, whole_way.outcome)
        assert not whole_way.temporary_files()
        shutil.rmtree(way.root)
    assert counts.total() >= counts.wanted
