"""What the tests of `python -m distill` share."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).parents[3]
TAGS = {0: "O", 1: "B-X", 2: "I-X"}
FOUR = {"num_hidden_layers": 4, "max_position_embeddings": 40}
# Runs the command in this process and returns what was measured.
Distil = Callable[..., dict[str, Any]]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
