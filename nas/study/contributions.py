"""The contributions of the rows to a trial's score: as a compact attribute of the trial, and what follows from them."""

import base64
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from distill.tasks.metrics import MEAN, Metric, paired_difference
from nas.config.schema import StudyConfig

# Seed -> a result with the contributions of its `rows`, or None.
BySeed = Mapping[int, Any]
BITS, FLOATS = "bits", "float32"
# Entities are counted as found and right, found, and real; words as right and all.
ENTITY_COLUMNS = 3


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


def metric_of_rows(config: StudyConfig, rows: np.ndarray) -> Metric:
    """The metric that is the score of a study's first task.

    Args:
        rows: the contributions of rows to it, (N,) if it is their mean, otherwise (N, K).
    """
    if rows.ndim == 1:
        return MEAN
    # These import torch, which takes seconds.
    from distill.tasks.readers import glue
    from distill.tasks.readers.tables import USUAL
    from distill.tasks.types import TASK_TYPES, TOKEN_CLASSIFICATION, get_task_type
    from nas.preparation.data import type_of_rows

    if (own := config.rows.get(config.task)) is not None:
        kind = get_task_type(type_of_rows(own))
        return kind.metrics[own.metric or USUAL[kind.name][0]]
    if config.task in glue.TASKS:
        return glue.TASKS[config.task].task.score_metric
    return TASK_TYPES[TOKEN_CLASSIFICATION].metrics["f1" if rows.shape[1] == ENTITY_COLUMNS else "accuracy"]


def lead_over(
    own: BySeed, others: BySeed, metric: Callable[[np.ndarray], Metric], over: str, trial: int | None
) -> dict[str, Any] | None:
    """The lead of a model over another: the mean, over their common seeds, of the difference on the same rows; None if
    they have no seed in common of which the rows are known.

    Args:
        own, others: the results of the two models.
        metric: contributions -> the metric of which they are.
        over, trial: the origin and the number of the other model.
    """
    pairs = {seed: (one.rows, others[seed].rows) for seed, one in own.items() if seed in others}
    pairs = {seed: pair for seed, pair in pairs.items() if pair[0] is not None and pair[1] is not None}
    if not pairs:
        return None
    rows = list(pairs.values())
    lead = paired_difference(metric(rows[0][0]), rows)
    return {"over": over, "over_trial": trial, **asdict(lead), "seeds": list(pairs)}
