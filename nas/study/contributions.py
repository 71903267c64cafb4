"""The contributions of the rows to a trial's score, as a compact attribute of the trial."""

import base64
import math
import zlib
from typing import Any

import numpy as np

BITS, FLOATS = "bits", "float32"


def encode(rows: np.ndarray) -> dict[str, Any]:
    """The contributions, of shape (N,) or (N, K), as JSON: one bit each if all are 0 or 1, otherwise as float32;
    compressed.
    """
    form = BITS if np.isin(rows, (0, 1)).all() else FLOATS
    packed = np.packbits(rows.astype(bool).reshape(-1)) if form == BITS else rows.astype("<f4")
    return {
        "form": form,
        "shape": list(rows.shape),
        "zlib": base64.b64encode(zlib.compress(packed.tobytes(), 9)).decode("ascii"),
    }


def decode(stored: dict[str, Any]) -> np.ndarray:
    """The contributions in float64 that `encode` wrote."""
    data, shape = zlib.decompress(base64.b64decode(stored["zlib"])), stored["shape"]
    if stored["form"] == BITS:
        flat = np.unpackbits(np.frombuffer(data, np.uint8), count=math.prod(shape))
    else:
        flat = np.frombuffer(data, "<f4")
    return flat.reshape(shape).astype(np.float64)
