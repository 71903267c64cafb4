"""The tiny study's prepared workspace, and a copy of the folder of its search."""

import shutil
from pathlib import Path

import pytest

from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from tests.nas.tiny_study import TinyStudy


@pytest.fixture
def workspace(tiny_study: TinyStudy) -> Workspace:
    """The prepared workspace, which only the first test makes, because its parts are cached."""
    return prepare(tiny_study.config, "cpu")


@pytest.fixture
def copied(searched: Path, tmp_path: Path) -> Path:
    """A copy of the finished search's folder, which the test may change."""
    shutil.copytree(searched, tmp_path / "s")
    return tmp_path / "s"
