"""The lines that are printed where there is no terminal."""

import io
import time

import pytest
from rich.console import Console

from distill.training import progress
from distill.training.progress import Progress


def test_long_work_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of work that reports nothing has a line after every `SILENCE` seconds, and none after its end."""
    monkeypatch.setattr(progress, "SILENCE", 0.05)
    file = io.StringIO()
    with Progress(Console(file=file)) as shown:
        shown.update("sorting", None)
        while file.getvalue().count("sorting (0:") < 3:
            time.sleep(0.01)
        shown.update("training", 0.5)
    lines = file.getvalue().splitlines()
    assert [line.partition(":")[0] for line in lines if " (" not in line] == ["sorting", "training"]
    assert any(line.startswith("training 50% (0:") for line in lines) and lines[-1].startswith("training: ")
    time.sleep(0.2)
    assert file.getvalue().splitlines() == lines


def test_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.01)
    file = io.StringIO()
    with Progress(Console(file=file), quiet=True) as shown:
        shown.update("sorting", None)
        time.sleep(0.1)
    assert not file.getvalue()
