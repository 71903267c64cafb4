"""One tiny study for all tests of the search."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState

from nas.prepare import prepare
from nas.workspace import Workspace
from tests.nas import house as houses
from tests.nas.house import House


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> House:
    return houses.shared(tmp_path_factory.getbasetemp())


@pytest.fixture
def house(built: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """The study, with its cache for this process too; the library's process-wide state is reset around it."""
    monkeypatch.setenv("FFN_NAS_CACHE", str(built.cache))
    AcceleratorState._reset_state(reset_partial_state=True)
    yield built
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def workspace(house: House) -> Workspace:
    """All that the study prepares; made once, as it is cached."""
    return prepare(house.config, "cpu")


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return houses.finished(tmp_path_factory.getbasetemp())


@pytest.fixture
def copied(searched: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to be changed."""
    shutil.copytree(searched, tmp_path / "s")
    return tmp_path / "s"
