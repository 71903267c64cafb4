"""Accelerate keeps the precision of the first `Accelerator` for the whole process."""

import sys


def forget_precision() -> None:
    """The next `Accelerator` chooses its precision anew, as in a new process."""
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
