"""For all tests: nothing is fetched from the hub, Ctrl-C works, and a full-precision accelerator."""

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

# Read once, when the library is first imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

if TYPE_CHECKING:
    from accelerate import Accelerator

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
