"""What can be chosen by name is listed with a line each, in `--help` and by `?`."""

import subprocess
import sys
from pathlib import Path

import pytest

from distill import choices
from distill.__main__ import main
from distill.__main__ import parser as distill_parser
from distill.objectives import OBJECTIVES
from distill.tasks.readers import READERS


def test_every_objective_and_task_has_a_line() -> None:
    assert choices.OBJECTIVES.keys() == OBJECTIVES.keys()
    assert choices.TASKS.keys() == {task for reader in READERS for task in reader.TASKS}


@pytest.mark.parametrize(
    ("option", "lines"), [("--objective", choices.OBJECTIVES), ("--task", choices.TASKS)], ids=["objective", "task"]
)
def test_a_question_mark_lists_the_choices(
    option: str, lines: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([option, "?"])
    assert stopped.value.code in (0, None)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in printed] == [[name, line] for name, line in lines.items()]
    assert all(line in distill_parser().format_help() for line in printed)


def test_a_question_mark_lists_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--set", "alpha=1", "--set", "?"])
    assert stopped.value.code in (0, None)
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert printed.keys() == OBJECTIVES.keys()
    assert printed["kd"].strip() == "alpha=0.5, temperature=2.0, balance=0.0"
    words = ["--student", "a", "--out", "b", "--set", "alpha=1", "--set", "balance=2"]
    assert distill_parser().parse_args(words).set == ["alpha=1", "balance=2"]
    assert distill_parser().parse_args(words[:4]).set == []


def test_extensions_are_listed_and_their_mistakes_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FFN_NAS_EXTENSIONS", "nowhere_to_be_found")
    with pytest.raises(SystemExit) as stopped:
        main(["--objective", "?"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "cannot import 'nowhere_to_be_found'" in error and error.count("\n") == 1
    monkeypatch.setattr("distill.objectives.OBJECTIVES", OBJECTIVES | {"mine": OBJECTIVES["kd"]})
    assert choices.objectives()["mine"] == "from an extension"


@pytest.mark.parametrize(
    "module",
    [
        "distill",
        "distill.augment",
        "nas.search",
        "nas.inspect",
        "nas.final",
        "supernet.student",
        "supernet.prune",
        "supernet.cut_vocabulary",
        "supernet.experts",
    ],
)
def test_help_imports_nothing_that_takes_long(module: str) -> None:
    slow = ("torch", "transformers", "ray", "optuna", "sklearn", "sympy")
    code = (
        "import sys, runpy\n"
        f"sys.argv = [{module!r}, '--help']\n"
        "try:\n"
        f"    runpy.run_module({module!r}, run_name='__main__')\n"
        "finally:\n"
        f"    assert not [name for name in {slow!r} if name in sys.modules], sorted(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage: ")
