"""Ctrl-C once and twice, at random moments on the whole way from text to export: exit status 130, one line that says
how to go on, and nothing left behind. The way is continued as the line says, and ends as one that was never disturbed.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from foundation.files import DRAFT_PREFIX
from tests.nas.processes import family, still_running
from tests.nas.tiny_study import TIMEOUT
from tests.trust.conftest import Undisturbed
from tests.trust.way import PHASES, STARTING, Way, assert_undisturbed, phase_now, reached
from tests.trust_counts import Cases

LINE = re.compile(
    r"(nas\.search|train_final\.py): interrupted; the same command (?P<resume>with --resume )?continues it\n"
    r"|nas\.export: interrupted; the folder is empty: start it again\n"
)


def press(process: subprocess.Popen[bytes], rng: random.Random, times: int) -> list[psutil.Process]:
    """Send the signal of Ctrl-C to the process group this many times; returns all processes."""
    everyone = family(process.pid)
    for number in range(times):
        if number:
            time.sleep(rng.uniform(0, 4))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    return everyone


@pytest.mark.slow
@pytest.mark.trust
def test_interrupted_on_the_whole_way(whole_way: Undisturbed, tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """Ctrl-C once and twice, at random moments."""
    counts = cases(sample=3, full=40)
    rng = random.Random(0)
    said, done = tmp_path / "said.txt", 0
    while done < counts.wanted:
        chosen = sorted(rng.sample(range(len(PHASES)), min(len(PHASES), counts.wanted - done)))
        coming = [PHASES[number] if rng.random() < 0.9 else STARTING for number in chosen]
        way, resume = Way(tmp_path / f"way-{done}", whole_way.preset), False
        while (command := way.command()) is not None:
            said.write_bytes(b"")
            command = [*(word for word in command if word != "--resume"), *(["--resume"] if resume else [])]
            process, moment, times, everyone = way.start(command, said), None, 0, list[psutil.Process]()
            phase = ""
            try:
                while process.poll() is None:
                    time.sleep(0.02)
                    if not coming or times:
                        continue
                    if moment is None and (coming[0] == STARTING or reached(way, said, coming[0])):
                        moment = time.monotonic() + rng.random() * whole_way.seconds[coming[0]]
                    if moment is not None and time.monotonic() >= moment:
                        phase, times = phase_now(way, said), 1 + done % 2
                        everyone = press(process, rng, times)
                        process.wait(TIMEOUT)
            finally:
                process.kill()
            shown = said.read_text()
            resume = False
            if times and process.returncode != 0:
                line = LINE.search(shown)
                assert process.returncode == 130 and line, (phase, shown)
                assert "Traceback" not in shown and "Exception ignored" not in shown, (phase, shown)
                assert not still_running(everyone, TIMEOUT)
                assert not whole_way.temporary_files()
                assert not list(way.root.rglob(f"{DRAFT_PREFIX}*"))
                resume = bool(line["resume"])
                counts[f"{phase}: pressed {'twice' if times == 2 else 'once'}"] += 1
                coming.pop(0)
                done += 1
            else:
                assert process.returncode == 0, shown
        # What was to come in a phase that had ended by then does not count.
        done += len(coming)
        assert_undisturbed(way, whole_way.outcome)
        shutil.rmtree(way.root)
