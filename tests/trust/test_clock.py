"""A clock that is set back by a day while a search runs, as by a correction of the time."""

import struct
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests import requirements
from tests.nas.records import results
from tests.nas.tiny_study import TIMEOUT, TinyStudy, states, trials_of, wait
from tests.trust_counts import Cases

A_DAY = 24 * 60 * 60


@pytest.fixture
def shift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Shifts the system's clock by this many seconds for all processes that are started from now on."""
    library, file = tmp_path / "shifted_clock.so", tmp_path / "shift"
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run([requirements.program("cc"), "-O2", "-shared", "-fPIC", "-o", library, source], check=True)

    def set_shift(seconds: int) -> None:
        with file.open("r+b") as opened:
            opened.write(struct.pack("q", seconds))

    file.touch()
    set_shift(0)
    monkeypatch.setenv("SHIFTED_CLOCK", str(file))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    return set_shift


@pytest.mark.slow
@pytest.mark.trust
def test_the_clock_is_set_back_while_a_search_runs(
    searched: Path, tiny_study: TinyStudy, shift: Callable[[int], None], tmp_path: Path, cases: Callable[..., Cases]
) -> None:
    """A clock set back by a day: the search ends normally, and its report can be made."""
    counts = cases(sample=1, full=4)
    for case in range(counts.wanted):
        shift(0)
        folder = tmp_path / f"results-{case}" / "s"
        with tiny_study.running(*tiny_study.search(folder.parent, "--study", "s")) as process:
            wait(process, lambda: states(folder)["COMPLETE"] > case)  # noqa: B023
            shift(-A_DAY)
            _, error = process.communicate(timeout=2 * TIMEOUT)
        assert (process.returncode, error) == (0, "")
        assert results(folder) == results(searched)
        trials = trials_of(folder) + trials_of(folder, "confirmation")
        began = [trial.datetime_start for trial in trials if trial.datetime_start is not None]
        assert any(after < before for before, after in pairwise(began))
        assert all(0 <= trial.user_attrs["seconds"] < A_DAY for trial in trials if "seconds" in trial.user_attrs)
        report = tiny_study.run("-m", "nas.report", folder)
        assert (report.returncode, report.stderr) == (0, "")
        counts["set back, and ended normally"] += 1
