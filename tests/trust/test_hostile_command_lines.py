"""Arbitrary command lines are parsed, or refused in one line with exit status 2. Commands are not run."""

import argparse
import importlib
import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from distill.cli import Parser
from foundation.errors import UserError
from tests.checkout import ROOT
from tests.trust.mutations import WEIRD, case
from tests.trust_counts import Cases

# The modules with the commands' parsers, each with the function that checks the options before anything is loaded.
COMMANDS = {
    "nas.search": ("nas.search.options", None),
    "nas": ("nas.__main__", None),
    "nas.inspect": ("nas.inspect", None),
    "nas.pick": ("nas.pick", None),
    "nas.report": ("nas.report.command", None),
    "nas.compare": ("nas.compare", None),
    "nas.export": ("nas.export.command", None),
    "train_final": ("nas.final.command", "check"),
    "distill": ("distill.__main__", None),
    "distill.augment": ("distill.augment", None),
    "supernet.student": ("supernet.student", None),
    "supernet.prune": ("supernet.prune", "check"),
    "supernet.cut_vocabulary": ("supernet.cut_vocabulary", "check"),
    "supernet.experts": ("supernet.experts.command", "check"),
}
VALUES = ["0", "1", "-1", "2.5", "1/0", "nan", "inf", "1e999", "8M", "99%", "x" * 5000, "", "é", "a,b", ",", "=", "?"]
VALUES += [str(value)[:3000] for value in WEIRD if isinstance(value, str | int | float)]
# A test's stderr refuses surrogates; `test_bytes_that_are_no_text` has them in a process.
VALUES = [value for value in VALUES if value.isascii() or value.isprintable()]


def words(rng: random.Random, parser: argparse.ArgumentParser) -> list[str]:
    """A command line of options that exist or almost do, with arbitrary values."""
    names = [name for action in parser._actions for name in action.option_strings]
    line = []
    for _ in range(rng.randint(0, 6)):
        name = rng.choice(names)
        match rng.randrange(6):
            case 0:
                line.append(name)
            case 1:
                line.append(f"{name}={rng.choice(VALUES)}")
            case 2:
                line.append(name[: rng.randint(1, len(name))])
            case 3:
                line.append(rng.choice(VALUES))
            case _:
                line += [name, rng.choice(VALUES)]
    return line


@pytest.mark.trust
@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_command_lines(command: str, cases: Callable[..., Cases], capsys: pytest.CaptureFixture[str]) -> None:
    """Arbitrary options and values are parsed, or refused in one line."""
    module, check = COMMANDS[command]
    parser: Parser = importlib.import_module(module).parser()
    counts = cases(sample=100, full=5_000)
    rng = random.Random(command)
    for number in range(counts.wanted):
        given = words(rng, parser)
        with case(counts, f"case {number}: {given}"):
            try:
                options = parser.parse_args(given)
            except SystemExit as error:
                shown = capsys.readouterr().err
                assert error.code in (0, 2)
                if error.code == 2:
                    assert shown.startswith(parser.prog) and shown.count("\n") == 1
                    raise UserError(shown[:1000].strip()) from error  # it shows a whole value, however long
                continue
            if check:
                getattr(importlib.import_module(module), check)(options)
    assert counts["refused"]


def test_bytes_that_are_no_text() -> None:
    result = subprocess.run([sys.executable, "-m", "nas.inspect", b"\xff\xfe"], capture_output=True, cwd=ROOT)
    assert result.returncode == 2
    assert result.stderr.count(b"\n") == 1 and result.stderr.startswith(b"nas.inspect")
