"""What the tiny study prepares, and a copy of its search."""

import shutil
from pathlib import Path

import pytest

from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from tests.nas.house import House


@pytest.fixture
def workspace(house: House) -> Workspace:
    """All that the study prepares; made once, as it is cached."""
    return prepare(house.config, "cpu")


@pytest.fixture
def copied(searched: Path, tmp_path: Path) -> Path:
    """A copy of the finished search's folder, to be changed."""
    shutil.copytree(searched, tmp_path / "s")
    return tmp_path / "s"
