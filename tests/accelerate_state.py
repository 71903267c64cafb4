"""Accelerate's process-wide state, in which the first `Accelerator` fixes the device and the precision."""

import sys


def reset_accelerate() -> None:
    """Let the next `Accelerator` choose its device and precision anew, if accelerate has been imported."""
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
