"""An extension that gets candidates into trouble. A file, which `TEST_TROUBLE` names, has the kind of trouble for each
architecture in JSON.
"""

import ctypes
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch

from nas.evaluation.trained import TrainedEvaluator
from search_spaces import Architecture

FILE = "TEST_TROUBLE"
# Kind of trouble -> the reason that the ledger has for it; none for a trial that is repeated.
REASONS = {
    "raises an error": "error: ZeroDivisionError: nothing to divide by",
    "hangs": "timeout: not finished after 20 seconds",
    "is not finite": "diverged: ",
    "needs more memory than there is": "out of memory: ",
    "loses its worker": None,
}
sound = TrainedEvaluator.evaluate


def evaluate(self: TrainedEvaluator, architecture: Architecture, *arguments: Any, **options: Any) -> Any:
    file = Path(os.environ[FILE])
    kind = json.loads(file.read_text()).get(json.dumps(architecture.to_json()))
    if kind == "raises an error":
        raise ZeroDivisionError("nothing to divide by")
    if kind == "hangs":
        ctypes.PyDLL(None).sleep(1000)  # as a library that keeps the interpreter's lock
    if kind == "needs more memory than there is":
        torch.empty(2**48)
    if kind == "loses its worker" and not (lost := file.with_suffix(".lost")).exists():
        lost.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    weights = self.weights
    if kind == "is not finite":
        self.weights = {name: weight * torch.nan for name, weight in weights.items()}
    try:
        return sound(self, architecture, *arguments, **options)
    finally:
        self.weights = weights


if FILE in os.environ:  # not in the process of the test, which imports the reasons
    TrainedEvaluator.evaluate = evaluate  # type: ignore[method-assign, assignment]
