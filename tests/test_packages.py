"""A package of the same name from another distribution is noticed at the start, in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from foundation.packages import PACKAGES
from tests.checkout import copy_to


def start(*path: Path) -> subprocess.CompletedProcess[str]:
    """Start the search with these folders as Python's path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    line = [sys.executable, "-P", "-m", "nas.search", "--version"]
    return subprocess.run(line, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("packages") / "checkout")


def test_ours_are_accepted(checkout: Path) -> None:
    assert start(checkout).returncode == 0


@pytest.mark.parametrize("name", sorted({*PACKAGES} - {"nas", "foundation"}))
def test_a_package_that_comes_first(name: str, checkout: Path, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    result = start(tmp_path, checkout)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 1
    assert f"the package '{name}' in {tmp_path / name} is not that of ffn-nas, which is in {checkout}: " in line


def test_a_package_that_was_written_over_ours(checkout: Path, tmp_path: Path) -> None:
    other = copy_to(tmp_path / "checkout")
    (other / "distill" / "__init__.py").write_text('"""Another project."""\n')
    (line,) = start(other).stderr.splitlines()
    assert f"the package 'distill' in {other / 'distill'} is not that of ffn-nas" in line
