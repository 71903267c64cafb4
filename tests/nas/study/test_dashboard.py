"""What optuna-dashboard shows of a study, in a real browser."""

import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from nas.report.notes import add_missing_notes
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.description import Parameters
from nas.study.storage import sqlite_url
from search_spaces import Architecture
from tests import requirements
from tests.nas.study.test_description import BASE, HALF, SPACES

PATIENCE = 60
# Studies by their ids in the dashboard, which count from 1: space, sampler, goals.
STUDIES = {
    "stage 1": ("lanas", ("score",)),
    "stage 2": ("lanas", ("score",)),
    "stage 3": ("lanas", ("score",)),
    "experts": ("random", ("score",)),
    "gated": ("nsga2", ("score", "params")),
}


def fill(url: str, kind: str) -> None:
    """Add twenty trials, including the base model. Scores mostly depend on the inner width of the lowest layer."""
    space, (sampler, goals) = SPACES[kind], STUDIES[kind]
    study = ledger.open_study(url, kind, SAMPLERS[sampler](space, 0), goals)
    baselines = [(Architecture.uniform(BASE), "base model", None), (HALF, "uniform slice", None)]
    ledger.enqueue_missing(study, space, baselines)
    rng = random.Random(0)
    while len(study.trials) < 20:
        trial, architecture = ledger.ask(study, space, sampler)
        if not ledger.resolve_duplicate(study, trial.number):
            score = architecture.ffns[0].inner(BASE) + rng.random()
            ledger.complete(study, trial.number, score, {"standard_error": 0.01})
    add_missing_notes(study)


@contextmanager
def dashboard(url: str) -> Iterator[str]:
    """The address of a dashboard that is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = (Path(sys.executable).with_name("optuna-dashboard"), url, "--port", str(port))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    urlopen(f"{address}/dashboard").close()
                    break
                except URLError:
                    assert time.monotonic() < end and process.poll() is None
                    time.sleep(0.2)
            yield address
        finally:
            process.kill()


def rendered(browser: str, page: str, profile: Path) -> str:
    """The elements of the page after its scripts have run."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
    command = (browser, *options, f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom", page)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=2 * PATIENCE).stdout


@pytest.mark.slow
def test_notes_are_shown(tmp_path: Path) -> None:
    browser, url = requirements.program("chromium"), sqlite_url(tmp_path / "study.db")
    fill(url, "experts")
    with dashboard(url) as address:
        page = rendered(browser, f"{address}/dashboard/studies/1/trials?numbers=0", tmp_path / "profile")
    assert "Trial 0: base model</h3>" in page
    assert page.count(">project(gelu(expand(x)))</code>") == BASE.depth


@pytest.mark.slow
def test_plots_are_drawn(tmp_path: Path) -> None:
    browser, profile = requirements.program("chromium"), tmp_path / "profile"
    url = sqlite_url(tmp_path / "study.db")
    for kind in STUDIES:
        fill(url, kind)
    with dashboard(url) as address:
        for number, kind in enumerate(STUDIES, 1):
            analytics = rendered(browser, f"{address}/dashboard/studies/{number}/analytics", profile)
            contour = analytics.partition('id="graph-contour"')[2].partition('id="graph-rank"')[0]
            assert 'class="contourlevel"' in contour, kind
            assert contour.count('class="point"') >= 2, kind
            overview = rendered(browser, f"{address}/dashboard/studies/{number}", profile)
            importances = overview.partition('id="graph-hyperparameter-importances"')[2]
            labels = [name for name in Parameters.of(SPACES[kind]).distributions if f">{name}<" in importances]
            assert len(labels) == len(Parameters.of(SPACES[kind]).distributions), kind
