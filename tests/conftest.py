"""For all tests: nothing is fetched from the hub, Ctrl-C works, and a full-precision accelerator."""

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

# Read once, when the library is first imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from hypothesis import settings

pytest_plugins = ["tests.slow_thirds", "pytester"]

if TYPE_CHECKING:
    from pathlib import Path

    from accelerate import Accelerator

    from tests.nas.house import House

# A busy machine makes a test slow, not wrong.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell lets its background jobs ignore it, and they the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def accelerator() -> "Iterator[Accelerator]":
    """float32 on the CPU; the library's process-wide state, which holds the precision, is reset around it."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(cpu=True, mixed_precision="no")
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> "House":
    """The one tiny study of a test run."""
    from tests.nas.house import shared

    return shared(tmp_path_factory.getbasetemp())


@pytest.fixture
def house(built: "House", monkeypatch: pytest.MonkeyPatch) -> "Iterator[House]":
    """That study, with its cache for this process too; the library's process-wide state is reset around it."""
    from accelerate.state import AcceleratorState

    monkeypatch.setenv("FFN_NAS_CACHE", str(built.cache))
    AcceleratorState._reset_state(reset_partial_state=True)
    yield built
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> "Path":
    """The folder of that study's finished search."""
    from tests.nas.house import finished

    return finished(tmp_path_factory.getbasetemp())
