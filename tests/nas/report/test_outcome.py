"""What a search prints at its end, and after an interruption."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console

from nas.planning.finalists import BASE_MODEL, GLOBAL, UNIFORM
from nas.report.outcome import results_of, show_results
from nas.report.study import read
from nas.study import ledger
from nas.study.attributes import FUNCTION, TEACHER, attribute
from nas.study.folder import Folder
from nas.study.names import existing_studies
from tests.nas.tiny_study import PROJECT, TIMEOUT, TinyStudy, states, trials_of, wait


def test_the_results_are_those_of_the_trials(searched: Path) -> None:
    folder = Folder(searched)
    results = results_of(read(folder))
    best = json.loads(folder.best("1").read_text())
    assert results["done"] and results["compared_by"] == "score" and results["front"] == [] == results["errors"]
    assert [row["name"] for row in results["models"]] == [BASE_MODEL, UNIFORM, GLOBAL, "winner of stage 1"]
    assert results["teacher"] == existing_studies(folder)["stage-1"].user_attrs[TEACHER]
    winner = results["winner"]
    assert (winner["trial"], winner["confirmed"]) == (best["winner"]["trial"], best["winner"]["confirmed_mean"])
    for row in results["models"]:
        study = "reference" if row["name"] == BASE_MODEL else "stage-1"
        trial = trials_of(searched, study)[row["trial"]]
        assert row["stage"] == study.removeprefix("stage-")
        assert (row["value"], row["params"], row["macs"]) == (
            trial.values[0],
            trial.user_attrs["params"],
            trial.user_attrs["macs"],
        )
        fresh = [
            other.values[0]
            for other in trials_of(searched, "confirmation")
            if attribute(other, FUNCTION) == attribute(trial, FUNCTION) and ledger.DUPLICATE_OF not in other.user_attrs
        ]
        assert row["confirmed_seeds"] == len(fresh)
        assert row["confirmed"] == (pytest.approx(fmean(fresh)) if fresh else None)
    assert [Path(file).name for file in results["files"]] == ["config.toml", "architecture.json", "best.json"]
    assert not results["models"][0]["within_budget"]


def test_before_the_end_there_is_the_best_so_far(copied: Path) -> None:
    folder = Folder(copied)
    folder.best("1").unlink()
    folder.architecture.unlink()
    results = results_of(read(folder))
    best = ledger.ranked(existing_studies(folder)["stage-1"])[0]
    assert not results["done"]
    assert (results["winner"]["name"], results["winner"]["trial"]) == ("best of stage 1 so far", best.number)
    console = Console(width=60, record=True, file=io.StringIO())
    show_results(folder, folder.storage, console)
    printed = console.export_text()
    assert f"python -m nas.pick {copied}" in printed.replace("\n", "") and "best of stage 1 so far" in printed
    assert f"{best.values[0]:.4f} ± " in printed  # a narrow terminal cuts nothing off


@pytest.mark.slow
def test_quiet_and_json(searched: Path, copied: Path, tiny_study: TinyStudy) -> None:
    """A finished study is resumed, which does nothing but show its results."""
    resumed = tiny_study.search(copied.parent, "--study", "s", "--resume")
    result = tiny_study.run(*resumed, "--json")
    assert result.returncode == 0
    found = json.loads(result.stdout)
    folder = Folder(copied)
    assert found == results_of(read(folder))
    assert f"study {copied}" in result.stderr
    result = tiny_study.run(*resumed, "--quiet")
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert lines[0][:3] == ["model", "trial", "score"]
    assert lines[-1][:2] == ["wrote", f"{folder.architecture};"]


@pytest.mark.slow
def test_ctrl_c_in_a_terminal(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """A person presses Ctrl-C during the trials, and reads how to go on."""
    folder = tmp_path / "tiny"
    command = [sys.executable, *map(str, tiny_study.search(tmp_path, "--trials", "500"))]
    environment = os.environ | {"FFN_NAS_CACHE": str(tiny_study.cache), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        seen = Reader(ours)
        try:
            wait(process, lambda: bool(seen.more()) and states(folder)["COMPLETE"] > 2)
            os.killpg(process.pid, signal.SIGINT)
            while seen.more(TIMEOUT):
                pass
            assert process.wait(TIMEOUT) == 130, seen.text[-3000:]
        finally:
            process.kill()
    os.close(ours)
    text = seen.text
    assert "of 499 trials" in text and "running: trial" in text and "left" in text
    end = text[text.rindex("best of stage 1 so far") :]
    assert f"python -m nas.pick {folder}" in end
    assert end.endswith("nas.search: interrupted; the same command with --resume continues it\r\n")
    assert not [word for word in ("Traceback", "Loading weights", "WARNING", "raylet", "Exception") if word in text]


class Reader:
    """Reads what a process writes to a terminal."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.text = descriptor, ""

    def more(self, seconds: float = 0.0) -> bool:
        """Read what there is, waiting this many seconds for it; False at the end of the output."""
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if not ready:
            return seconds == 0.0
        try:
            data = os.read(self.descriptor, 65_536)
        except OSError:  # the process has ended
            return False
        self.text += data.decode(errors="replace")
        return bool(data)
