"""What the terminal shows."""

import io
import time

import optuna
import pytest
from rich.console import Console

from distill.training import progress as progress_module
from distill.training.progress import clock
from nas.search.progress import Part, Progress
from nas.study import ledger


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0, 5.9, 65, 3600)] == ["0:00", "0:05", "1:05", "1:00:00"]


def enqueued(*origins: str) -> optuna.Study:
    """A study whose trials, one of each origin, are running."""
    study = optuna.create_study(direction="maximize", study_name="stage-1")
    for origin in origins:
        study.enqueue_trial({}, user_attrs={ledger.ORIGIN: origin, ledger.WITHIN_BUDGET: origin != "base model"})
        study.ask()
    return study


ATTRIBUTES = {"standard_error": 0.0125, "params": 15_400_000, "seconds": 12.3}


def test_lines_of_a_log() -> None:
    text = io.StringIO()
    study = enqueued("base model", "random", "random")
    with Progress(Console(file=text, width=200)) as progress:
        progress.update("text", None)
        for step in range(1, 11):
            progress.update("teacher: fine-tuning", step / 10)
        progress.finish()
        progress.begin("stage 1", study, 3)
        ledger.fail(study, 1, "diverged: the loss is nan at step 3")
        progress.ended(study, 1)
        ledger.complete(study, 0, 0.75, ATTRIBUTES)
        progress.ended(study, 0)
        ledger.complete(study, 2, 0.625, ATTRIBUTES)
        progress.ended(study, 2)
    lines = [line for line in text.getvalue().splitlines() if line.strip()]
    assert lines[0] == "text: 0:00"
    assert [line.partition("%")[0] for line in lines[1:4]] == [
        f"teacher: fine-tuning {share}" for share in (30, 60, 90)
    ]
    assert lines[4] == "teacher: fine-tuning: 0:00"
    assert lines[5].startswith(
        "   1/3  trial 1   random             failed: diverged: the loss is nan at step 3  no score"
    )
    assert lines[6].startswith("   2/3  trial 0   base model         score 0.7500 ± 0.0125  15.40 M parameters  12 s")
    assert "no score yet, 0:00 left" in lines[6]  # the base model is outside the box
    assert "3/3" in lines[7] and "best 0.6250 (trial 2), 0:00 left" in lines[7]
    assert len(lines) == 8


def test_quiet() -> None:
    text = io.StringIO()
    study = enqueued("random")
    with Progress(Console(file=text, width=200, force_terminal=True), quiet=True) as progress:
        progress.update("text", None)
        progress.update("teacher: fine-tuning", 1.0)
        progress.begin("stage 1", study, 1)
        ledger.complete(study, 0, 0.75, ATTRIBUTES)
        progress.ended(study, 0)
    assert text.getvalue() == ""


class Clock:
    """A clock that tests advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def test_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes ten times as long as was estimated."""
    clock_ = Clock(monkeypatch)
    progress = Progress(Console(file=io.StringIO(), width=200))
    parts = [Part("teacher: fine-tuning", 1, 3.0), Part("stage 1", 6, 1.0), Part("confirmation of stage 1", 4, 5.0)]
    progress.parts = [*parts, Part("stage 2", 10, 1.0)]
    assert progress.left() is None
    progress.update("teacher: fine-tuning", 0.0)
    clock_.now += 10
    progress.update("teacher: fine-tuning", 1 / 3)
    assert progress.left() == pytest.approx(20 + 60 + 200 + 100)
    clock_.now += 20
    study = enqueued(*["random"] * 6)
    progress.begin("stage 1", study, 6)
    # The workers take 50 seconds to start, then a trial ends every 10 seconds.
    clock_.now += 40
    for number in range(6):
        progress.started(study, number)
        assert f"trial {number} (random) 0:00" in progress.lines()[1]
        clock_.now += 10
        ledger.complete(study, number, 0.75, ATTRIBUTES)
        progress.ended(study, number)
        left = progress.left()
        truth = (5 - number) * 10 + 200 + 100
        assert left is not None and left >= truth - 1e-6
    assert left == pytest.approx(truth)
    assert progress.lines()[0].startswith("stage 1: 6 of 6 trials, 6.0 a minute, best 0.7500 (trial 0)")


def test_the_live_view_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what goes on, and its clock runs although nothing calls the display."""
    clock_ = Clock(monkeypatch)
    progress = Progress(Console(file=io.StringIO(), width=80, force_terminal=True))
    progress.update("collecting the text of this installation", None)
    assert progress.lines() == ["collecting the text of this installation (0:00)"]
    clock_.now += 65
    assert progress.lines() == ["collecting the text of this installation (1:05)"]
    drawn = Console(file=io.StringIO(), width=80)
    drawn.print(progress.status.renderable.text)
    assert drawn.file.getvalue().startswith("collecting the text of this installation (1:05)")  # type: ignore[attr-defined]


def test_parts_that_the_cache_has_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ = Clock(monkeypatch)
    progress = Progress(Console(file=io.StringIO(), width=200))
    progress.parts = [Part("teacher: fine-tuning", 1, 300.0), Part("stage 1", 2, 1.0), Part("stage 2", 3, 1.0)]
    progress.update("reading the rows and the text", None)
    study = enqueued("random", "random")
    progress.begin("stage 1", study, 2)
    clock_.now += 10
    ledger.complete(study, 0, 0.75, ATTRIBUTES)
    progress.ended(study, 0)
    assert progress.left() == pytest.approx(10 + 30)
    # What is none of the parts does not begin them again.
    progress.update("teacher: fine-tuning", 0.0)
    clock_.now += 4
    progress.update("teacher: fine-tuning", 0.5)
    assert progress.left() == pytest.approx(4 + 30)


def test_a_resumed_piece_counts_from_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ = Clock(monkeypatch)
    progress = Progress(Console(file=io.StringIO(), width=200))
    progress.update("teacher: fine-tuning", 0.5)
    assert progress.left_of_piece() is None and progress.line() == "teacher: fine-tuning 50% (0:00)"
    clock_.now += 30
    progress.update("teacher: fine-tuning", 0.75)
    assert progress.left_of_piece() == pytest.approx(30)
    assert progress.line() == "teacher: fine-tuning 75% (0:30, 0:30 left)"


def test_long_trials_are_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "SILENCE", 0.02)
    file = io.StringIO()
    line, deadline = "stage 1: 0 of 2 trials, no score yet; starting the workers", time.monotonic() + 60
    with Progress(Console(file=file, width=200)) as shown:
        shown.begin("stage 1", enqueued("base model"), 2)
        while file.getvalue().count(line) < 2:
            assert time.monotonic() < deadline, file.getvalue()
            time.sleep(0.01)
