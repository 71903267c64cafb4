"""Modules from outside the project, which commands import first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distill.cli import DONE, USER_ERROR, guard
from foundation.extensions import GROUP, VARIABLE, ExtensionError, load_extensions
from search_spaces import UNARY, Architecture, Base

BASE = Base(depth=2, width=24, heads=4, inner=48, vocabulary=50, positions=128)
CUBE = """
from search_spaces import UNARY, Operation

UNARY["cube"] = Operation("a**3", lambda x: x**3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that can be imported."""
    (tmp_path / "cubes.py").write_text(CUBE)
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "cubes", raising=False)
    monkeypatch.setitem(UNARY, "cube", None)  # restores the table afterwards
    del UNARY["cube"]
    return tmp_path


def declare(folder: Path, module: str) -> None:
    """Install a package that declares the module as an extension."""
    package = folder / "added-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{GROUP}]\nadded = {module}\n")


@pytest.mark.parametrize("value", ["cubes", " cubes ,", "json,cubes"])
def test_modules_of_the_variable(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    load_extensions()
    assert "cube" not in UNARY
    monkeypatch.setenv(VARIABLE, value)
    assert guard("nas.search", lambda: DONE if "cube" in UNARY else 1) == DONE


def test_modules_of_installed_packages(folder: Path) -> None:
    declare(folder, "cubes")
    load_extensions()
    assert "cube" in UNARY


def test_modules_that_cannot_be_imported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "broken")
    assert guard("nas.search", lambda: DONE) == USER_ERROR
    assert capsys.readouterr().err == (
        "nas.search: FFN_NAS_EXTENSIONS: cannot import 'broken' (ModuleNotFoundError: No module named "
        "'no_such_library'); install its package, or add its folder to PYTHONPATH\n"
    )
    declare(folder, "broken")
    with pytest.raises(ExtensionError, match=r"entry point added in the group ffn_nas.extensions: cannot import"):
        load_extensions()


def test_a_command_knows_an_added_operation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Architecture.uniform(BASE).to_json()
    path = folder / "cubed.json"
    path.write_text(json.dumps(plain).replace("gelu(", "cube("))
    command = [sys.executable, "-m", "nas.inspect", path]
    without = subprocess.run(command, capture_output=True, text=True)
    assert without.returncode == USER_ERROR
    assert "unknown operation 'cube'" in without.stderr
    monkeypatch.setenv(VARIABLE, "cubes")
    with_it = subprocess.run(command, capture_output=True, text=True)
    assert with_it.returncode == DONE, with_it.stderr
    assert with_it.stdout.count("project(cube(expand(x)))") == BASE.depth
