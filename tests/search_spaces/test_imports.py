"""What importing the package, and starting a command, costs."""

import json
import os
import subprocess
import sys

import pytest

import search_spaces

HEAVY = {"networkx", "numpy", "optuna", "ray", "sympy", "torch", "transformers"}


def heavy_modules(program: str) -> set[str]:
    """The packages of HEAVY that a fresh process has imported after it ran `program`."""
    code = f"{program}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    return HEAVY & set(json.loads(run.stdout.splitlines()[-1]))


HELP = """
import nas.search.command
try:
    nas.search.command.main(["--help"])
except SystemExit as exit_:
    assert not exit_.code
"""


@pytest.mark.parametrize(
    ("program", "imported"),
    [
        ("import foundation.errors", set()),
        ("from search_spaces import Architecture, PUBLISHED, Space", {"networkx", "numpy"}),
        ("import search_spaces.formula", {"networkx", "numpy"}),
        ("import nas.inspect; assert not nas.inspect.main(['base'])", {"networkx", "numpy"}),
        (HELP, {"networkx", "numpy"}),
        ("from nas.config.load import load_config; load_config('demo')", {"networkx", "numpy", "optuna"}),
        ("import nas.export.command; nas.export.command.parser()", {"networkx", "numpy"}),
        ("from search_spaces.formula import latex; from search_spaces import GELU; latex(GELU)",
         {"networkx", "numpy", "sympy"}),
    ],
)  # fmt: skip
def test_imports(program: str, imported: set[str]) -> None:
    found = heavy_modules(program)
    assert found <= imported
    assert ("sympy" in found) == ("sympy" in imported)


def test_every_name_is_there() -> None:
    assert sorted(search_spaces.__all__) == sorted(search_spaces._MODULE_OF)
    for name in search_spaces.__all__:
        assert getattr(search_spaces, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = search_spaces.Nothing
