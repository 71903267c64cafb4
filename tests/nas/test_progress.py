"""What the terminal shows."""

import io

import optuna
from rich.console import Console

from distill.training.progress import clock
from nas.progress import Progress
from nas.study import ledger


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0, 5.9, 65, 3600)] == ["0:00", "0:05", "1:05", "60:00"]


def test_lines() -> None:
    text = io.StringIO()
    study = optuna.create_study(direction="maximize", study_name="stage-1")
    for origin in ("base model", "random", "random"):
        study.enqueue_trial({}, user_attrs={ledger.ORIGIN: origin, ledger.IN_BUDGET: origin == "random"})
        study.ask()
    attributes = {"standard_error": 0.0125, "params": 15_400_000, "seconds": 12.3}
    with Progress(Console(file=text, width=200)) as progress:
        progress.update("text", None)
        for step in range(1, 11):
            progress.update("teacher: fine-tuning", step / 10)
        progress.finish()
        progress.finish()
        ledger.fail(study, 1, "diverged: the loss is nan at step 3")
        progress.trial(study, 1, 3)
        ledger.complete(study, 0, 0.75, attributes)
        progress.trial(study, 0, 3)
        ledger.complete(study, 2, 0.625, attributes)
        progress.trial(study, 2, 3)
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
